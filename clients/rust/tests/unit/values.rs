//! The parts of clients/behaviour.json that need no server: they look at what the package sends and reads.

use std::time::{Duration, SystemTime};

use serde_json::{json, Value};

use axum::http::{HeaderMap, HeaderName};

use crate::pause::asked;
use crate::span::Rate;
use crate::{headers, Decision, Denial, Error, Fixed, Gcra, Lease, Limits, Policy};

#[path = "../common/table.rs"]
mod table;

use table::{class, duration, known_policy, object, policy, rows};

/// The command that takes a unit of the key `k` at this time.
fn command(policy: &Policy, now: SystemTime) -> Value {
    json!([vec![policy.command_name().to_string(), "k".to_string()], policy.words(now).words.to_vec()].concat())
}

/// The Unix times in seconds at which the window of this time begins and ends.
fn window(fixed: Fixed, now: SystemTime) -> (i64, i64) {
    let words = Policy::from(fixed).words(now);
    let end = words.words.last().and_then(|end| end.parse().ok()).expect("an end");
    (end - i64::try_from(words.window.expect("a window")).expect("a length"), end)
}

#[test]
fn rates() {
    for row in rows("rates") {
        let rate = row["rate"].as_str().expect("a text");
        // A rate is checked when a policy is made from it. Fixed has the widest range.
        match (Fixed::new(rate), row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{rate}"),
            (Ok(policy), None) => {
                let Rate { limit, period } = Policy::from(policy).rate();
                assert_eq!(limit, row["limit"].as_u64().expect("a limit"), "{rate}");
                assert_eq!(period.as_micros(), row["period_us"].as_u64().expect("a period"), "{rate}");
                assert_eq!(rate.parse::<Rate>().expect("a rate").to_string(), row["text"].as_str().expect("a text"));
            }
            (found, expected) => panic!("{rate}: {found:?}, and not {expected:?}"),
        }
    }
    // What is wrong says which units there are.
    let error = Fixed::new("10/fortnight").expect_err("no unit").to_string();
    assert!(["us", "ms", "second", "min", "hour", "day"].iter().all(|unit| error.contains(unit)), "{error}");
}

#[test]
fn durations() {
    let mut excluded = 0;
    for row in rows("durations") {
        let Some(span) = duration(&row["duration"]) else {
            excluded += 1;
            continue;
        };
        match (span.and_then(|span| Ok((span, Lease::new(1, span)?))), row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{row}"),
            (Ok((span, _)), None) => {
                assert_eq!(span.as_micros(), row["us"].as_u64().expect("microseconds"), "{row}");
                assert_eq!(span.to_string(), row["text"].as_str().expect("a text"), "{row}");
            }
            (found, expected) => panic!("{row}: {found:?}, and not {expected:?}"),
        }
    }
    // A negative number, and `true`.
    assert_eq!(excluded, 2);
}

/// The headers are those of `http`, as `reqwest` has them.
#[test]
fn responses() {
    for row in rows("responses") {
        let status = u16::try_from(row["status"].as_u64().expect("a status")).expect("a status");
        let headers: HeaderMap = row["headers"]
            .as_object()
            .expect("headers")
            .iter()
            .map(|(name, text)| {
                let name = HeaderName::try_from(name.as_str()).expect("a name");
                (name, text.as_str().expect("a text").parse().expect("a value"))
            })
            .collect();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(row["now"].as_f64().expect("a time"));
        let found = asked(status, &headers, now);
        match row["seconds"].as_f64() {
            Some(seconds) => assert!((found - seconds).abs() < 0.001, "{row}: {found}"),
            None => assert!(found >= 31.0 * 86_400.0, "{row}: {found}"),
        }
    }
}

#[test]
fn no_header_is_an_error() {
    let words = [
        "\"",
        "\\",
        ",",
        ";",
        "=",
        " ",
        "r=0",
        "t=",
        "99999999999999999999",
        "Mon, ",
        "31 Feb 2026",
        " 00:00:00 ",
        "GMT",
        "-",
        ":",
        "\u{e9}",
        "\u{ff}\0",
    ];
    let mut seed = 1_u64;
    let mut text = |length: usize| -> String {
        let word = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            words[usize::try_from(seed >> 33).expect("a number") % words.len()]
        };
        (0..length).map(word).collect()
    };
    for length in 0..5_000 {
        let names = ["Retry-After", "RateLimit", "X-RateLimit-Reset", "X-RateLimit-Remaining"];
        let headers = names.map(|name| (name, text(length % 9)));
        assert!(asked(429, headers.clone(), SystemTime::now()) >= 0.0, "{headers:?}");
    }
}

#[test]
fn policies() {
    let mut excluded = 0;
    for row in rows("policies") {
        let Some(policy) = policy(&row["policy"]) else {
            excluded += 1;
            continue;
        };
        match (policy, row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{row}"),
            (Ok(policy), None) => {
                if let Some(capacity) = row["capacity"].as_u64() {
                    assert_eq!(policy.capacity(), capacity, "{row}");
                    assert_eq!(command(&policy, SystemTime::now()), row["command"]);
                } else if row["equals"].is_object() {
                    assert_eq!(policy, known_policy(&row["equals"]));
                } else {
                    assert_ne!(policy, known_policy(&row["differs"]));
                }
            }
            (found, expected) => panic!("{row}: {found:?}, and not {expected:?}"),
        }
    }
    // Four numbers with a fraction or a sign, `true`, and a negative limit of a lease.
    assert_eq!(excluded, 6);
}

#[test]
fn windows_of_the_calendar() {
    for row in rows("calendar") {
        let time = |name: &str| row[name].as_i64().expect("a time");
        let zone = row["zone"].as_str().expect("a zone");
        let fixed = Fixed::zone(&format!("5/{}", row["period"].as_str().expect("a period")), zone).expect("a policy");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(row["now"].as_u64().expect("a time"));
        assert_eq!(window(fixed, now), (time("starts"), time("ends")), "{row}");
        assert_eq!(command(&fixed.into(), now), row["command"], "{row}");
        let decision = Decision::of_reply([1, 5, 4, 0, 1000], fixed.into(), "api".into()).expect("a decision");
        let decision = Decision { window: Policy::from(fixed).words(now).window, ..decision };
        let headers = object(decision.headers());
        for (name, value) in row["headers"].as_object().expect("headers") {
            assert_eq!(headers[name], *value, "{row}");
        }
    }
}

#[test]
fn windows_of_the_calendar_have_no_gaps_and_fit_their_period() {
    for name in ["Europe/Berlin", "America/New_York", "America/Havana", "Australia/Lord_Howe", "Pacific/Auckland"] {
        for (unit, hours) in [("d", 25), ("week", 169), ("month", 745)] {
            let fixed = Fixed::zone(&format!("1/{unit}"), name).expect("a policy");
            let at = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.try_into().expect("a time"));
            let window = |seconds: i64| window(fixed, at(seconds));
            let (mut begin, mut end) = window(1_767_225_600);
            while end < 1_893_456_000 {
                assert!(begin < end && end - begin <= hours * 3_600, "{unit} of {name}: {begin} to {end}");
                assert_eq!(window(end - 1), (begin, end), "{unit} of {name}");
                let next = window(end);
                assert_eq!(next.0, end, "{unit} of {name}");
                (begin, end) = next;
            }
        }
    }
}

#[tokio::test]
async fn names() {
    for row in rows("names") {
        let limits =
            Limits::open("redis://127.0.0.1:1").expect("an address").prefix(row["prefix"].as_str().expect("a prefix"));
        let limit = limits.limit(row["name"].as_str().expect("a name"), Gcra::new("10/m").expect("a policy"));
        match (limit, row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{row}"),
            (Ok(limit), None) => {
                let key = match row["key"].as_i64() {
                    Some(number) => limit.key(&number),
                    None => limit.key(row["key"].as_str().expect("a key")),
                };
                assert_eq!(key.expect("a key"), row["on_the_server"].as_str().expect("a key").as_bytes());
            }
            (found, expected) => panic!("{row}: {found:?}, and not {expected:?}"),
        }
    }
}

fn decision(value: &Value) -> Decision {
    let reply: Vec<i64> = serde_json::from_value(value["reply"].clone()).expect("integers");
    let name = value["name"].as_str().expect("a name");
    Decision::of_reply(reply.try_into().expect("five"), known_policy(&value["policy"]), name.into()).expect("a decision")
}

#[test]
fn headers_of_one_decision_and_of_several() {
    for row in rows("headers") {
        assert_eq!(object(decision(&row).headers()), row["headers"], "{}", row["about"]);
    }
    for row in rows("joined_headers") {
        let decisions: Vec<_> = row["decisions"].as_array().expect("decisions").iter().map(decision).collect();
        assert_eq!(object(headers(&decisions)), row["headers"], "{}", row["about"]);
    }
}

#[test]
fn a_problem_names_the_limits_that_denied() {
    let policy = Policy::from(Gcra::new("10/m").expect("a policy"));
    let of = |name: &str, granted| {
        Decision::of_reply([granted, 10, 0, 1 - granted, 1], policy.clone(), name.into()).expect("a decision")
    };
    let decisions = vec![of("free", 1), of("say \"hi\" \\", 0), of("day", 0)];
    let denial = Denial { decision: decisions[1].clone(), decisions };
    let problem: Value = serde_json::from_str(&denial.problem()).expect("JSON");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["status"], &problem["violated-policies"]), (&json!(429), &json!(["say \"hi\" \\", "day"])));
    let alone: Value = serde_json::from_str(&of("day", 0).problem()).expect("JSON");
    assert_eq!(alone["violated-policies"], json!(["day"]));
}

#[test]
fn an_error_that_gave_no_decision_says_what_to_do() {
    let advice = |error: Error| error.advice();
    assert!(advice(Error::NoModule(String::new())).contains("load"));
    assert!(advice(Error::NotAllowed(String::new())).contains("password"));
    for (code, word) in [("LOADING", "wait"), ("READONLY", "primary"), ("OOM", "maxmemory"), ("what?", "reach")] {
        let cause = std::sync::Arc::new(std::io::Error::other(code));
        assert!(advice(Error::Unavailable { cause, sent: false }).contains(word), "{code}");
    }
}

#[test]
fn a_policy_is_shown_as_it_is_made() {
    let of = |policy: Result<Policy, Error>| policy.expect("a policy").to_string();
    assert_eq!(of(Fixed::new("1000/d").and_then(|policy| Ok(policy.align("-8h")?.into()))), "Fixed(1000/d, align -8h)");
    assert_eq!(of(Fixed::zone("1000/d", "America/New_York").map(Into::into)), "Fixed(1000/d, zone America/New_York)");
    assert_eq!(of(Gcra::new("10/m").and_then(|policy| Ok(policy.burst(5)?.into()))), "Gcra(10/m, burst 5)");
    assert_eq!(of(Lease::new(4, "30s").map(Into::into)), "Lease(4, ttl 30s)");
}

#[test]
fn the_key_of_an_address_is_its_network() {
    for row in rows("addresses") {
        let address = row["address"].as_str().expect("text").parse().expect("an address");
        assert_eq!(crate::address_key(address), row["key"], "{row}");
    }
}
