//! Runs clients/behaviour.json: what the client packages in all languages have in common.

mod common;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use common::{speaking, url, Cluster, Watched};
use redis_rl_client::connection::{Connection, Sentinel, Server as OneServer};
use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::{
    headers, redis, Bucket, Decision, Error, Fixed, Gcra, Held, Lease, Limit, Limits, OnDown, Policy, Rate, Slide, Span,
};
use serde_json::{json, Map, Value};
use support::{server_program, Server};

fn table() -> Value {
    serde_json::from_str(include_str!("../../behaviour.json")).expect("JSON")
}

fn rows(part: &str) -> Vec<Value> {
    let rows = table()[part].as_array().expect("rows").clone();
    assert!(!rows.is_empty());
    rows
}

// ---- Values ----

fn class(error: &Error) -> &'static str {
    match error {
        Error::InvalidLimit(_) => "InvalidLimit",
        Error::InvalidKey(_) => "InvalidKey",
        Error::InvalidCost(_) => "InvalidCost",
        Error::InvalidWait(_) => "InvalidWait",
        Error::InvalidId(_) => "InvalidId",
        Error::RateLimited(_) => "RateLimited",
        Error::LeaseLost => "LeaseLost",
        Error::Down(_) => "Down",
        Error::NoModule(_) => "NoModule",
        Error::WrongType(_) => "WrongType",
        Error::UnexpectedReply(_) => "UnexpectedReply",
        Error::Refused(_) => "Refused",
        other => panic!("a class for {other:?}"),
    }
}

/// A duration; `None` if the types of this language exclude it.
fn duration(value: &Value) -> Option<Result<Span, Error>> {
    match value {
        Value::String(text) => Some(text.parse()),
        Value::Number(seconds) => {
            let duration = Duration::try_from_secs_f64(seconds.as_f64()?).ok()?;
            Some(duration.try_into())
        }
        _ => None,
    }
}

/// As [`duration`]; a wait below 0 is a text here, because no `Duration` is negative.
fn wait(value: &Value) -> Result<Span, Error> {
    duration(value).unwrap_or_else(|| format!("{value}s").parse())
}

/// A number of units; `None` if the types exclude it.
fn units(value: &Value) -> Option<u64> {
    value.as_u64()
}

/// A key or an id; `None` if the types exclude it.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Object(object) => Some(match object.get("hex") {
            Some(hex) => {
                let hex = hex.as_str().expect("a text");
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
                (0..hex.len()).step_by(2).map(byte).collect()
            }
            None => {
                object["text"].as_str().expect("a text").repeat(object["repeat"].as_u64().expect("a number") as usize).into()
            }
        }),
        _ => None,
    }
}

/// A policy; `None` if the types exclude it.
fn policy(value: &Value) -> Option<Result<Policy, Error>> {
    let rate = || value["rate"].as_str().expect("a rate");
    let option = |name: &str| match &value[name] {
        Value::Null => Some(None),
        number => units(number).map(Some),
    };
    fn then<P, T>(policy: Result<P, Error>, option: Option<T>, set: impl Fn(P, T) -> Result<P, Error>) -> Result<P, Error> {
        match option {
            Some(option) => set(policy?, option),
            None => policy,
        }
    }
    Some(match value["type"].as_str().expect("a type") {
        "fixed" => match &value["align"] {
            Value::Null => Fixed::new(rate()).map(Into::into),
            Value::String(offset) => Fixed::new(rate()).and_then(|policy| policy.align(offset.as_str())).map(Into::into),
            seconds => {
                let offset = Duration::from_secs_f64(seconds.as_f64().expect("seconds"));
                Fixed::new(rate()).and_then(|policy| policy.align(offset)).map(Into::into)
            }
        },
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

fn known_policy(value: &Value) -> Policy {
    policy(value).expect("a policy of this language").expect("a policy")
}

fn decision(value: &Value) -> Decision {
    let reply: Vec<i64> = serde_json::from_value(value["reply"].clone()).expect("integers");
    let name = value["name"].as_str().expect("a name");
    Decision::of_reply(reply.try_into().expect("five"), known_policy(&value["policy"]), name.into()).expect("a decision")
}

fn object(headers: Vec<(&'static str, String)>) -> Value {
    Value::Object(headers.into_iter().map(|(name, value)| (name.to_string(), Value::String(value))).collect())
}

// ---- Without a server ----

#[test]
fn rates() {
    for row in rows("rates") {
        let rate = row["rate"].as_str().expect("a text");
        // A rate is checked when a policy is made from it. Fixed has the widest range.
        match (Fixed::new(rate), row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{rate}"),
            (Ok(policy), None) => {
                let policy = Policy::from(policy);
                assert_eq!(policy.limit(), row["limit"].as_u64().expect("a limit"), "{rate}");
                assert_eq!(policy.period().as_micros(), row["period_us"].as_u64().expect("a period"), "{rate}");
                assert_eq!(rate.parse::<Rate>().expect("a rate").to_string(), row["text"].as_str().expect("a text"));
            }
            (found, expected) => panic!("{rate}: {found:?}, and not {expected:?}"),
        }
    }
}

#[test]
fn durations() {
    let mut excluded = 0;
    for row in rows("durations") {
        let Some(span) = duration(&row["duration"]) else {
            excluded += 1;
            continue;
        };
        match (span.and_then(|span| Lease::new(1, span)), row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{row}"),
            (Ok(lease), None) => {
                assert_eq!(lease.ttl().as_micros(), row["us"].as_u64().expect("microseconds"), "{row}");
                assert_eq!(lease.ttl().to_string(), row["text"].as_str().expect("a text"), "{row}");
            }
            (found, expected) => panic!("{row}: {found:?}, and not {expected:?}"),
        }
    }
    // A negative number, and `true`.
    assert_eq!(excluded, 2);
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
                    let command: Vec<_> =
                        policy.command("k").into_iter().map(|word| String::from_utf8(word).expect("text")).collect();
                    assert_eq!(json!(command), row["command"]);
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

#[tokio::test]
async fn names() {
    for row in rows("names") {
        let limits =
            Limits::open("redis://127.0.0.1:1").expect("an address").prefix(row["prefix"].as_str().expect("a prefix"));
        let limit = limits.limit(row["name"].as_str().expect("a name"), Gcra::new("10/m").expect("a policy"));
        match (limit, row["error"].as_str()) {
            (Err(error), Some(expected)) => assert_eq!(class(&error), expected, "{row}"),
            (Ok(limit), None) => {
                let key = limit.key(row["key"].as_str().expect("a key")).expect("a key");
                assert_eq!(key, row["on_the_server"].as_str().expect("a key").as_bytes());
            }
            (found, expected) => panic!("{row}: {found:?}, and not {expected:?}"),
        }
    }
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

// ---- With a server ----

/// What a call has returned, with the names of the table.
fn outcome(result: Result<Option<Decision>, Error>) -> Value {
    match result {
        Ok(None) => json!({ "none": true }),
        Ok(Some(decision)) => json!({
            "granted": decision.granted,
            "allowed": decision.allowed(),
            "counted": decision.counted,
            "limit": decision.limit,
            "remaining": decision.remaining,
            "wait_ms": decision.wait_ms,
            "reset_ms": decision.reset_ms,
            "headers": object(decision.headers()),
        }),
        Err(error) => json!({
            "error": class(&error),
            "retry_after": error.retry_after().map(|retry| retry.as_secs_f64()),
        }),
    }
}

fn matches(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Array(range), Value::Number(found)) => {
            let bound = |index: usize| range[index].as_f64().expect("a number");
            let found = found.as_f64().expect("a number");
            bound(0) <= found && found <= bound(1)
        }
        (Value::Number(expected), Value::Number(found)) => expected.as_f64() == found.as_f64(),
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len() && expected.iter().zip(found).all(|(expected, found)| matches(expected, found))
        }
        (Value::Object(expected), Value::Object(found)) => {
            expected.iter().all(|(name, expected)| found.get(name).is_some_and(|found| matches(expected, found)))
        }
        _ => expected == found,
    }
}

/// Headers must be equal; of the other fields, those that the table names.
fn agrees(expected: &Value, found: &Value) -> bool {
    let same_headers = expected["headers"].is_null() || expected["headers"] == found["headers"];
    same_headers && matches(expected, found)
}

fn of_redis(value: redis::Value) -> Value {
    match value {
        redis::Value::Int(number) => json!(number),
        redis::Value::Okay => json!("OK"),
        redis::Value::SimpleString(text) => json!(text),
        redis::Value::BulkString(text) => json!(String::from_utf8_lossy(&text)),
        redis::Value::Array(values) => Value::Array(values.into_iter().map(of_redis).collect()),
        other => json!(format!("{other:?}")),
    }
}

/// Where the cases run.
struct World<'a> {
    limits: Limits,
    /// The policies of the case by the names of their limits.
    policies: BTreeMap<String, Value>,
    /// Sends a command of the test to the server that has the keys.
    ask: &'a dyn Fn(&[String]) -> redis::Value,
}

type Steps<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

impl World<'_> {
    fn limit(&self, name: &str) -> Limit {
        self.limits.limit(name, known_policy(&self.policies[name])).expect("a name")
    }

    fn lease(&self, name: &str) -> Limit<Lease> {
        let row = &self.policies[name];
        let lease =
            Lease::new(row["limit"].as_u64().expect("a limit"), duration(&row["ttl"]).expect("a ttl").expect("a ttl"));
        self.limits.limit(name, lease.expect("a lease")).expect("a name")
    }

    /// Runs steps; inside of a lease, `held` is that lease. Returns the error with which they end.
    fn run<'a>(&'a self, steps: &'a [Value], held: Option<&'a Held>) -> Steps<'a> {
        Box::pin(async move {
            for step in steps {
                if step["check"] == true {
                    held.expect("a lease").check().await?;
                } else if let Some(words) = step["server"].as_array() {
                    let words: Vec<String> = words.iter().map(|word| word.as_str().expect("a word").to_string()).collect();
                    let reply = of_redis((self.ask)(&words));
                    assert!(matches(&step["reply"], &reply), "{step}: {reply}");
                } else {
                    // What is dropped ends in the background: a step that looks at the result asks until it is there.
                    let start = Instant::now();
                    while let Some(found) = self.step(step).await {
                        let again = step["call"] == "peek" && start.elapsed() < Duration::from_secs(5);
                        if agrees(&step["expect"], &found) {
                            break;
                        }
                        assert!(again, "{step}\nfound: {found}");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            Ok(())
        })
    }

    /// Makes a call, and returns what came out; `None` if the types exclude the call.
    async fn step(&self, step: &Value) -> Option<Value> {
        let call = step["call"].as_str().expect("a call");
        if call == "all" {
            return Some(self.all(step).await);
        }
        let name = match step["limit"].as_str() {
            Some(name) => name.to_string(),
            None => self.policies.keys().next().expect("a limit").clone(),
        };
        let limit = self.limit(&name);
        let key = bytes(&step["key"])?;
        let cost = match &step["cost"] {
            Value::Null => 1,
            cost => units(cost)?,
        };
        let id = match &step["id"] {
            Value::Null => None,
            id => Some(bytes(id)?),
        };
        let inside = step["inside"].as_array().map(Vec::as_slice).unwrap_or_default();
        let raises = step["raises"] == true;
        Some(outcome(match call {
            "take" => limit.take(&key).cost(cost).await.map(Some),
            "peek" => limit.peek(&key).cost(cost).await.map(Some),
            "wait" => match wait(&step["seconds"]) {
                Ok(seconds) => limit.wait(&key, seconds).cost(cost).await.map(Some),
                // A text that is no duration.
                Err(_) => limit.wait(&key, step["seconds"].as_str().unwrap_or("-1s")).cost(cost).await.map(Some),
            },
            "reserve" => limit.reserve(&key, wait(&step["seconds"]).expect("a duration")).cost(cost).await.map(Some),
            "protect" => match &step["wait"] {
                Value::Null => limit.protect(&key).cost(cost).await.map(Some),
                seconds => limit.protect(&key).cost(cost).wait(wait(seconds).expect("a duration")).await.map(Some),
            },
            "until" => {
                let fixed = Fixed::new(self.policies[&name]["rate"].as_str().expect("a rate")).expect("a policy");
                let fixed = self.limits.limit(&name, fixed).expect("a name");
                let time = SystemTime::now() + Duration::from_secs(step["until_in"].as_u64().expect("seconds"));
                fixed.until(&key, time).cost(cost).await.map(Some)
            }
            "take_up_to" => limit.take_up_to(&key, units(&step["units"])?).await.map(Some),
            "force" => limit.force(&key, units(&step["units"])?).await.map(Some),
            "refund" => limit.refund(&key, units(&step["units"])?).await.map(Some),
            "settle" => limit.settle(&key, id.expect("an id"), units(&step["units"])?).await,
            "release" => limit.release(&key, id.expect("an id")).await,
            "renew" => self.lease(&name).renew(&key, id.expect("an id")).await.map(Some),
            "charge" => {
                let used = match &step["used"] {
                    Value::Null => None,
                    used => Some(units(used)?),
                };
                let mut charging = limit.charge(&key, units(&step["estimate"])?);
                if let Some(id) = id {
                    charging = charging.id(id);
                }
                if !step["wait"].is_null() {
                    charging = charging.wait(wait(&step["wait"]).expect("a duration"));
                }
                match charging.await {
                    Err(error) => Err(error),
                    Ok(mut charge) => {
                        let decision = charge.decision().clone();
                        self.run(inside, None).await.expect("no error");
                        match (used, raises) {
                            (Some(used), false) => drop(charge.settle(used).await.expect("a cost")),
                            // The body returns early with an error of its own: the guard is dropped.
                            (used, true) => used.map_or(Ok(()), |used| charge.set_used(used)).expect("a cost"),
                            (None, false) => drop(charge.keep()),
                        }
                        Ok(Some(decision))
                    }
                }
            }
            "hold" => {
                let mut hold = self.lease(&name).hold(&key).cost(cost);
                if let Some(id) = id {
                    hold = hold.id(id);
                }
                if !step["wait"].is_null() {
                    hold = match wait(&step["wait"]) {
                        Ok(wait) => hold.wait(wait),
                        Err(_) => hold.wait("-1s"),
                    };
                }
                match hold.await {
                    Err(error) => Err(error),
                    Ok(held) => {
                        let decision = held.decision().clone();
                        match self.run(inside, Some(&held)).await {
                            Err(error) => Err(error),
                            Ok(()) if raises => {
                                drop(held);
                                Ok(Some(decision))
                            }
                            Ok(()) => held.release().await.map(|()| Some(decision)),
                        }
                    }
                }
            }
            other => panic!("unknown call {other}"),
        }))
    }

    async fn all(&self, step: &Value) -> Value {
        let rules = step["rules"].as_array().expect("rules").iter().map(|rule| {
            let limit = self.limit(rule[0].as_str().expect("a name"));
            limit.rule(rule[1].as_str().expect("a key")).cost(units(&rule[2]).expect("a cost"))
        });
        let mut all = self.limits.all(rules);
        if let Some(id) = bytes(&step["id"]) {
            all = all.id(id);
        }
        if !step["wait"].is_null() {
            all = all.wait(wait(&step["wait"]).expect("a duration"));
        }
        match all.await {
            Err(error) => outcome(Err(error)),
            Ok(all) => json!({
                "granted": all.granted,
                "allowed": all.allowed(),
                "wait_ms": all.wait_ms,
                "has_id": all.id.is_some(),
                "decisions": all.decisions.into_iter().map(|decision| outcome(Ok(Some(decision)))).collect::<Vec<_>>(),
            }),
        }
    }
}

/// Runs all cases. `before` is called before each one, with the share of the cases that have run.
async fn run_cases(limits: Limits, ask: &dyn Fn(&[String]) -> redis::Value, before: impl Fn(f64)) {
    let cases = rows("cases");
    for (index, case) in cases.iter().enumerate() {
        before(index as f64 / cases.len() as f64);
        let policies: Map<String, Value> = case["limits"].as_object().expect("limits").clone();
        let world = World { limits: limits.clone(), policies: policies.into_iter().collect(), ask };
        let steps = case["steps"].as_array().expect("steps");
        world.run(steps, None).await.unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
    }
}

fn ask(server: &Server, words: &[String]) -> redis::Value {
    redis::cmd(&words[0]).arg(&words[1..]).query(&mut server.client()).expect("a reply")
}

fn flush(server: &Server) {
    let () = redis::cmd("FLUSHALL").query(&mut server.client()).expect("OK");
}

async fn run_on(server: &Server, connection: impl Connection) {
    // A busy machine may need longer for a reply than a program would wait.
    let limits = Limits::new(connection).patience(Duration::from_secs(20));
    let limits = limits.waits_with(OneServer::new(url(server)).expect("an address"));
    run_cases(limits, &|words| ask(server, words), |_| flush(server)).await;
}

const SLOW: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_on_a_server_with_resp2_and_resp3() {
    let server = Server::start();
    for protocol in ["resp2", "resp3"] {
        let address = speaking(&url(&server), protocol);
        run_on(&server, OneServer::new(address.as_str()).expect("an address").response_timeout(SLOW)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_on_connections_that_the_program_has() {
    let server = Server::start();
    let client = redis::Client::open(url(&server)).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SLOW));
    run_on(&server, client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")).await;
    let config = redis::aio::ConnectionManagerConfig::new().set_response_timeout(Some(SLOW));
    run_on(&server, client.get_connection_manager_with_config(config).await.expect("a connection")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_on_a_cluster() {
    let cluster = Cluster::start();
    let slow = |builder: redis::cluster::ClusterClientBuilder| builder.response_timeout(SLOW);
    let connection = redis_rl_client::connection::Cluster::with(cluster.urls(), slow).expect("addresses");
    let limits = Limits::new(connection).patience(Duration::from_secs(20));
    let owner = cluster.owner("{c}");
    // The connection learns the slots with its first call.
    let gcra = limits.limit("first", Gcra::new("10/m").expect("a policy")).expect("a name");
    assert!(gcra.take("a").await.expect("a decision").allowed());
    let before = cluster.moved();
    run_cases(limits, &|words| ask(owner, words), |_| cluster.nodes.iter().for_each(flush)).await;
    assert_eq!(cluster.moved(), before, "each call goes to the right node at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_behind_sentinel_with_a_failover_in_the_middle() {
    let watched = Watched::start();
    let client = SentinelClient::build(vec![watched.url()], "mymaster", None, SentinelServerType::Master);
    let connection = Sentinel::new(client.expect("an address")).response_timeout(SLOW);
    let limits = Limits::new(connection).patience(Duration::from_secs(20));
    let failed_over = std::cell::Cell::new(false);
    let first = watched.primary();
    let before = |share: f64| {
        if share >= 0.5 && !failed_over.replace(true) {
            assert_ne!(watched.fail_over(), first);
            let old = &watched.servers[first];
            support::wait_for("the old primary to follow", || {
                support::call::<String>(&mut old.client(), "INFO replication").contains("master_link_status:up")
            });
        }
        flush(&watched.servers[watched.primary()]);
    };
    // The failover is there before the next case begins, but the client has not heard of it: its first call gets READONLY, or
    // finds its connection closed. A call without an id is sent once, so a call with an id finds the new primary.
    let renewing = limits.clone();
    let before = |share: f64| {
        before(share);
        let limit = renewing.limit("warm", Gcra::new("10/m").expect("a policy")).expect("a name");
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { limit.charge("a", 1).await.expect("a charge").keep() })
        });
    };
    run_cases(limits.clone(), &|words| ask(&watched.servers[watched.primary()], words), before).await;
    assert!(failed_over.get());
}

async fn run_rows(part: &str, limits: &Limits, on_down: &str) {
    let policy = table()["down_policy"].clone();
    let mut ran = 0;
    for row in rows(part).iter().filter(|row| row["on_down"] == on_down) {
        let world = World {
            limits: limits.clone(),
            policies: [("api".to_string(), policy.clone())].into(),
            ask: &|_| panic!("there is no server to ask"),
        };
        world.run(std::slice::from_ref(row), None).await.expect("no error");
        ran += 1;
    }
    assert!(ran > 0, "{on_down}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_limits_are_closed_or_open() {
    let limits = Limits::open(format!("redis://127.0.0.1:{}", support::free_port())).expect("an address");
    let limits = limits.patience(Duration::from_millis(200));
    run_rows("down", &limits, "closed").await;
    run_rows("down", &limits.on_down(OnDown::Open), "open").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_module_is_an_error_in_both_modes() {
    let server = Server::of(&server_program(), false, &[]);
    let limits = Limits::open(url(&server)).expect("an address");
    run_rows("no_module", &limits, "closed").await;
    run_rows("no_module", &limits.on_down(OnDown::Open), "open").await;
}
