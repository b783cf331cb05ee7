//! Pauses: a key grants nothing for a while, because a third party has said stop.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::ask::awaited;
use crate::send::Request;
use crate::{AnyPolicy, Error, IntoSpan, Key, Limit, Span};

/// Too many requests, and service unavailable.
const STOPS: [u16; 2] = [429, 503];

/// Resets above this are Unix times.
const UNIX: f64 = 1e9;

const HOUR: Span = Span::of_micros(3_600_000_000);

impl<P: AnyPolicy> Limit<P> {
    /// Lets the key grant nothing for so long, whatever its policy is. Calls that wait keep their places. Of two pauses the one that ends
    /// later is in force: returns how long until it ends.
    pub async fn pause(&self, key: impl Key, duration: impl IntoSpan) -> Result<Duration, Error> {
        let (key, duration) = (self.key(&key)?, Span::of_pause(duration)?);
        self.erase().set_pause(&key, Some(duration)).await
    }

    /// Ends the pause of a key.
    pub async fn resume(&self, key: impl Key) -> Result<(), Error> {
        let key = self.key(&key)?;
        self.erase().set_pause(&key, None).await.map(drop)
    }

    /// Pauses the key if a third party has answered with 429 or 503, for as long as its headers say: `Retry-After`, or when a limit resets of
    /// which nothing remains. Returns how long until the pause in force ends; zero if the answer asks for none. Whatever the answer says is no
    /// error. Of a response of `reqwest`, pass `response.status()` and `response.headers()`; any pairs of a name and a value will do.
    pub fn observe<N: AsRef<str>, V: AsRef<[u8]>>(
        &self,
        key: impl Key,
        status: impl Into<u16>,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Observe {
        let seconds = asked(status.into(), headers, SystemTime::now());
        Observe { limit: self.erase(), key: self.key(&key), seconds, most: Ok(HOUR) }
    }
}

/// A call of [`Limit::observe`].
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Observe {
    limit: Limit,
    key: Result<Vec<u8>, Error>,
    /// What the answer asks for.
    seconds: f64,
    most: Result<Span, Error>,
}

impl Observe {
    /// How long the pause is at most; an hour by default.
    pub fn max_pause(self, most: impl IntoSpan) -> Self {
        Self { most: Span::of_pause(most), ..self }
    }

    async fn send(self) -> Result<Duration, Error> {
        let (key, most) = (self.key?, Duration::from(self.most?));
        if self.seconds == 0.0 {
            return Ok(Duration::ZERO);
        }
        let asked = Duration::try_from_secs_f64(self.seconds).unwrap_or(most).min(most);
        self.limit.set_pause(&key, Some(asked.max(Duration::from_millis(1)).span()?)).await
    }
}

awaited!([] Observe => Duration);

impl Limit {
    /// Sets a pause, or ends it.
    async fn set_pause(&self, key: &[u8], length: Option<Span>) -> Result<Duration, Error> {
        let length_text = length.map_or("0".to_string(), |length| length.to_string());
        let request = Request::new(redis::cmd("RL.PAUSE").arg(key).arg(length_text).take(), vec![key]);
        // The wallets of this process spend nothing of what they have fetched up to its beginning, or up to its end. They give it back
        // at the end: when the server knows of the pause, so that it grants it to nobody before.
        let stop_wallets = |give_back| length.map(|_| self.limits().stop_wallets(key, give_back));
        stop_wallets(false);
        scopeguard::defer!({
            stop_wallets(true);
        });
        // If it is repeated, the pause ends a little later.
        let reply = self.limits().send(Request { repeat: true, ..request }).await;
        self.repeats().forget(key);
        match reply.map(|reply| reply.value) {
            Ok(Value::Int(ms @ 0..)) => Ok(Duration::from_millis(ms.unsigned_abs())),
            Ok(other) => Err(Error::UnexpectedReply(format!("{other:?}"))),
            Err(error) => self.limits().without_server(error, |_| Duration::ZERO, |_| false),
        }
    }
}

/// The seconds that an answer asks for; 0 if it asks for none. What is malformed counts as missing.
pub(crate) fn asked<N: AsRef<str>, V: AsRef<[u8]>>(
    status: u16,
    headers: impl IntoIterator<Item = (N, V)>,
    now: SystemTime,
) -> f64 {
    if !STOPS.contains(&status) {
        return 0.0;
    }
    let mut fields: HashMap<String, Vec<String>> = HashMap::new();
    for (name, value) in headers {
        let text = String::from_utf8_lossy(value.as_ref()).trim().to_string();
        fields.entry(name.as_ref().to_ascii_lowercase()).or_default().push(text);
    }
    let field = |name: &str| fields.get(name).map(|texts| texts.join(", ")).unwrap_or_default();
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let after = field("retry-after");
    let seconds = number(&after).or_else(|| date(&after, now)).or_else(|| longest(&field("ratelimit"))).or_else(|| {
        let starts = ["ratelimit", "x-ratelimit", "x-rate-limit"];
        let mut empty = starts.iter().filter(|start| number(&field(&format!("{start}-remaining"))) == Some(0.0));
        let reset = empty.find_map(|start| number(&field(&format!("{start}-reset"))))?;
        Some(if reset > UNIX { reset - now } else { reset })
    });
    seconds.unwrap_or_default().max(0.0)
}

fn number(text: &str) -> Option<f64> {
    let is_whole = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = text.split_once('.').map_or(is_whole(text), |(whole, decimals)| is_whole(whole) && is_whole(decimals));
    text.parse().ok().filter(|_| is_number)
}

fn date(text: &str, now: f64) -> Option<f64> {
    let date = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(date.as_secs_f64() - now)
}

/// The longest `t` of the limits in a field `RateLimit` that have nothing left: `"day";r=0;t=30`.
fn longest(text: &str) -> Option<f64> {
    // Without the names, which are in quotes.
    let (mut quoted, mut escaped) = (false, false);
    let is_outside = |letter: &char| {
        let before = quoted;
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        !before && !quoted
    };
    let text: String = text.chars().filter(is_outside).collect();
    let time = |item: &str| {
        let words = item.split(';').filter_map(|word| word.trim().split_once('='));
        let words: HashMap<&str, &str> = words.collect();
        number(words.get("t")?).filter(|_| words.get("r").and_then(|left| number(left)) == Some(0.0))
    };
    text.split(',').filter_map(time).reduce(f64::max)
}
