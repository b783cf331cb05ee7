//! Policies as the server takes them, and as people read them.

use std::fmt;
use std::time::SystemTime;

use super::{Fixed, Policy};
use crate::span::Rate;

/// What follows the key in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) words: Vec<String>,
    /// The length of the window in seconds, if it is one of a calendar.
    pub(crate) window: Option<u64>,
}

impl Policy {
    /// The name of the command, that of the policy in texts, and that of its option with a number.
    fn names(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Fixed(_) => ("RL.FIXED", "Fixed", ""),
            Self::Slide(_) => ("RL.SLIDE", "Slide", "SEGMENTS"),
            Self::Gcra(_) => ("RL.GCRA", "Gcra", "BURST"),
            Self::Bucket(_) => ("RL.BUCKET", "Bucket", "CAPACITY"),
            Self::Lease(_) => ("RL.LEASE", "Lease", ""),
            Self::Named(named) => named.default.names(),
        }
    }

    pub(crate) fn command_name(&self) -> &'static str {
        self.names().0
    }

    /// The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`.
    pub(crate) fn algorithm(&self) -> &'static str {
        &self.command_name()["RL.".len()..]
    }

    pub(crate) fn rate(&self) -> Rate {
        self.spec().rate
    }

    /// The units that can be taken at once: the burst, the capacity or the limit; 0 if the limit is 0.
    pub(crate) fn capacity(&self) -> u64 {
        match (self, self.rate().limit) {
            (_, 0) => 0,
            (Self::Gcra(_) | Self::Bucket(_), limit) => self.spec().number.unwrap_or(limit),
            (Self::Named(named), _) => named.default.capacity(),
            (_, limit) => limit,
        }
    }

    pub(crate) fn is_lease(&self) -> bool {
        self.algorithm() == "LEASE"
    }

    pub(crate) fn is_named(&self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// The words that never change, if the windows are not those of a calendar.
    pub(crate) fn constant_words(&self) -> Option<Words> {
        self.spec().zone.is_none().then(|| self.words(SystemTime::UNIX_EPOCH))
    }

    /// What follows the key in a command, and the algorithm in a rule of `RL.ALL`, at this time.
    pub(crate) fn words(&self, now: SystemTime) -> Words {
        let (spec, (_, _, number)) = (self.spec(), self.names());
        let window = spec.zone.map(|zone| zone.window(now));
        let options = [
            (number, spec.number.map(|number| number.to_string())),
            ("ALIGN", spec.align.map(|offset| offset.to_string())),
            ("UNTIL", window.map(|(_, end)| end.to_string())),
        ];
        let mut words = vec![spec.rate.limit.to_string(), spec.rate.period.to_string()];
        words.extend(options.into_iter().filter_map(|(name, value)| Some([name.to_string(), value?])).flatten());
        words.extend(spec.step.then(|| "STEP".to_string()));
        Words { words, window: window.and_then(|(begin, end)| u64::try_from(end - begin).ok()) }
    }
}

impl Fixed {
    /// The Unix times in seconds at which the window of this time begins and ends, if it is one of a calendar.
    #[cfg(all(test, feature = "zone"))]
    pub(crate) fn window(self, now: SystemTime) -> Option<(i64, i64)> {
        self.0.zone.map(|zone| zone.window(now))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Named(named) = self {
            return fmt::Display::fmt(named, f);
        }
        let (spec, (_, name, number)) = (self.spec(), self.names());
        let Rate { limit, period } = spec.rate;
        match spec.zone {
            Some(zone) => write!(f, "{name}({limit}/{}, zone {}", zone.unit_name(), zone.name())?,
            None if self.is_lease() => write!(f, "{name}({limit}, ttl {period}")?,
            None => write!(f, "{name}({}", spec.rate)?,
        }
        if let Some(align) = spec.align {
            write!(f, ", align {align}")?;
        }
        if let Some(value) = spec.number {
            write!(f, ", {} {value}", number.to_ascii_lowercase())?;
        }
        f.write_str(if spec.step { ", step)" } else { ")" })
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
