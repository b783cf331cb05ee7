//! Reads clients/behaviour.json: what the client packages in all languages have in common.

use std::time::Duration;

use redis_rl_client::{Bucket, Error, Fixed, Gcra, IntoSpan, Lease, Policy, Slide, Span};
use serde_json::Value;

pub fn table() -> Value {
    serde_json::from_str(include_str!("../../../behaviour.json")).expect("JSON")
}

pub fn rows(part: &str) -> Vec<Value> {
    let rows = table()[part].as_array().expect("rows").clone();
    assert!(!rows.is_empty());
    rows
}

pub fn class(error: &Error) -> &'static str {
    match error {
        Error::InvalidLimit(_) => "InvalidLimit",
        Error::InvalidKey(_) => "InvalidKey",
        Error::InvalidCost(_) => "InvalidCost",
        Error::InvalidWait(_) => "InvalidWait",
        Error::InvalidId(_) => "InvalidId",
        Error::InvalidArgument(_) => "InvalidArgument",
        Error::RateLimited(_) => "RateLimited",
        Error::LeaseLost => "LeaseLost",
        Error::Unavailable { .. } => "Unavailable",
        Error::NoModule(_) => "NoModule",
        Error::NotAllowed(_) => "NotAllowed",
        Error::WrongType(_) => "WrongType",
        Error::UnexpectedReply(_) => "UnexpectedReply",
        Error::Closed => "Closed",
        #[allow(unreachable_patterns)] // Other crates can't list all of them.
        other => panic!("a class for {other:?}"),
    }
}

/// A duration; `None` if the types of this language exclude it.
pub fn duration(value: &Value) -> Option<Result<Span, Error>> {
    match value {
        Value::String(text) => Some(text.parse()),
        Value::Number(seconds) => {
            let duration = Duration::try_from_secs_f64(seconds.as_f64()?).ok()?;
            Some(duration.span())
        }
        _ => None,
    }
}

/// A number of units; `None` if the types exclude it.
pub fn units(value: &Value) -> Option<u64> {
    value.as_u64()
}

/// A policy; `None` if the types exclude it.
pub fn policy(value: &Value) -> Option<Result<Policy, Error>> {
    fn then<P, T>(policy: Result<P, Error>, option: Option<T>, set: impl Fn(P, T) -> Result<P, Error>) -> Result<P, Error> {
        match option {
            Some(option) => set(policy?, option),
            None => policy,
        }
    }
    let rate = || value["rate"].as_str().expect("a rate");
    let option = |name: &str| match &value[name] {
        Value::Null => Some(None),
        number => units(number).map(Some),
    };
    Some(match value["type"].as_str().expect("a type") {
        "fixed" => {
            let fixed = match value["zone"].as_str() {
                Some(zone) => Fixed::zone(rate(), zone),
                None => Fixed::new(rate()),
            };
            let fixed = match &value["align"] {
                Value::Null => fixed,
                Value::String(offset) => fixed.and_then(|policy| policy.align(offset.as_str())),
                seconds => fixed.and_then(|policy| policy.align(&format!("{seconds}s"))),
            };
            fixed.map(Into::into)
        }
        "slide" => then(Slide::new(rate()), option("segments")?, Slide::segments).map(Into::into),
        "gcra" => then(Gcra::new(rate()), option("burst")?, Gcra::burst).map(Into::into),
        "bucket" => {
            let bucket = then(Bucket::new(rate()), option("capacity")?, Bucket::capacity);
            bucket.map(|bucket| if value["step"] == true { bucket.step() } else { bucket }).map(Into::into)
        }
        "lease" => {
            let limit = units(&value["limit"])?;
            duration(&value["ttl"])?.and_then(|ttl| Lease::new(limit, ttl)).map(Into::into)
        }
        other => panic!("unknown policy {other}"),
    })
}

pub fn known_policy(value: &Value) -> Policy {
    policy(value).expect("a policy of this language").expect("a policy")
}

pub fn object(headers: Vec<(&'static str, String)>) -> Value {
    Value::Object(headers.into_iter().map(|(name, value)| (name.to_string(), Value::String(value))).collect())
}
