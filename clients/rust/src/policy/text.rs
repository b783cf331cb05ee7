//! Policies as the server takes them, and as people read them.

use std::fmt;
use std::time::SystemTime;

use super::{Fixed, Policy};
use crate::span::Rate;
use crate::{Bucket, Gcra, Slide};

/// What follows the key in a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) words: Vec<String>,
    /// The length of the window in seconds, if it is one of a calendar.
    pub(crate) window: Option<u64>,
}

impl Policy {
    /// The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`.
    pub(crate) fn algorithm(&self) -> &'static str {
        &self.command_name()["RL.".len()..]
    }

    pub(crate) fn command_name(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "RL.FIXED",
            Self::Slide(_) => "RL.SLIDE",
            Self::Gcra(_) => "RL.GCRA",
            Self::Bucket(_) => "RL.BUCKET",
            Self::Lease(_) => "RL.LEASE",
        }
    }

    pub(crate) fn rate(&self) -> Rate {
        match self {
            Self::Fixed(Fixed { rate, .. })
            | Self::Slide(Slide { rate, .. })
            | Self::Gcra(Gcra { rate, .. })
            | Self::Bucket(Bucket { rate, .. }) => *rate,
            Self::Lease(lease) => Rate { limit: lease.limit, period: lease.ttl },
        }
    }

    /// The units that can be taken at once: the burst, the capacity or the limit; 0 if the limit is 0.
    pub(crate) fn capacity(&self) -> u64 {
        let capacity = match self {
            Self::Gcra(policy) => policy.burst,
            Self::Bucket(policy) => policy.capacity,
            Self::Fixed(_) | Self::Slide(_) | Self::Lease(_) => None,
        };
        match self.rate().limit {
            0 => 0,
            limit => capacity.unwrap_or(limit),
        }
    }

    pub(crate) fn is_lease(&self) -> bool {
        matches!(self, Self::Lease(_))
    }

    /// The words that never change, if the windows are not those of a calendar.
    pub(crate) fn constant_words(&self) -> Option<Words> {
        match self {
            Self::Fixed(Fixed { zone: Some(_), .. }) => None,
            _ => Some(self.words(SystemTime::UNIX_EPOCH)),
        }
    }

    /// What follows the key in a command, and the algorithm in a rule of `RL.ALL`, at this time.
    pub(crate) fn words(&self, now: SystemTime) -> Words {
        let Rate { limit, period } = self.rate();
        let mut words = vec![limit.to_string(), period.to_string()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([name.to_string(), value]);
            }
        };
        let mut window = None;
        match self {
            Self::Fixed(policy) => {
                option("ALIGN", policy.align.map(|offset| offset.to_string()));
                if let Some((begin, end)) = policy.window(now) {
                    window = u64::try_from(end - begin).ok();
                    option("UNTIL", Some(end.to_string()));
                }
            }
            Self::Slide(policy) => option("SEGMENTS", policy.segments.map(|segments| segments.to_string())),
            Self::Gcra(policy) => option("BURST", policy.burst.map(|burst| burst.to_string())),
            Self::Bucket(policy) => {
                option("CAPACITY", policy.capacity.map(|capacity| capacity.to_string()));
                if policy.step {
                    words.push("STEP".to_string());
                }
            }
            Self::Lease(_) => {}
        }
        Words { words, window }
    }
}

impl Fixed {
    /// The Unix times in seconds at which the window of this time begins and ends, if it is one of a calendar.
    pub(crate) fn window(self, now: SystemTime) -> Option<(i64, i64)> {
        self.zone.map(|zone| zone.window(now))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate();
        let option = |name: &str, value: Option<u64>| value.map(|value| format!(", {name} {value}")).unwrap_or_default();
        match self {
            Self::Fixed(Fixed { zone: Some(zone), .. }) => {
                write!(f, "Fixed({}/{}, zone {})", rate.limit, zone.unit_name(), zone.name())
            }
            Self::Fixed(policy) => {
                let align = policy.align.map(|offset| format!(", align {offset}")).unwrap_or_default();
                write!(f, "Fixed({rate}{align})")
            }
            Self::Slide(policy) => write!(f, "Slide({rate}{})", option("segments", policy.segments)),
            Self::Gcra(policy) => write!(f, "Gcra({rate}{})", option("burst", policy.burst)),
            Self::Bucket(policy) => {
                let step = if policy.step { ", step" } else { "" };
                write!(f, "Bucket({rate}{}{step})", option("capacity", policy.capacity))
            }
            Self::Lease(policy) => write!(f, "Lease({}, ttl {})", policy.limit, policy.ttl),
        }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
