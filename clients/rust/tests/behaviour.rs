//! Runs the cases of clients/behaviour.json: what the client packages in all languages have in common.
#![cfg(feature = "zone")]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, StatusCode};
use common::table::{class, duration, known_policy, object, rows, table, units};
use common::{url, Cluster, Watched, LONG};
use redis_rl_client::connection;
use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::{redis, Decision, Error, Fixed, Gcra, Held, Lease, Limit, Limits, OnDown, Policy, Source, Span};
use serde_json::{json, Map, Value};
use support::{server_program, Server};

/// As [`duration`]; a wait below 0 is a text here, because no `Duration` is negative.
fn wait(value: &Value) -> Result<Span, Error> {
    duration(value).unwrap_or_else(|| format!("{value}s").parse())
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
            None => object["text"]
                .as_str()
                .expect("a text")
                .repeat(units(&object["repeat"]).expect("a number").try_into().expect("a number"))
                .into(),
        }),
        _ => None,
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
            "source": match decision.source {
                Source::Server => "server",
                Source::Wallet => "wallet",
                Source::Repeated => "repeated",
                Source::Down => "down",
                other => panic!("a name for {other:?}"),
            },
            "limit": decision.limit,
            "remaining": decision.remaining,
            "wait_ms": decision.wait_ms,
            "reset_ms": decision.reset_ms,
            "headers": object(decision.headers()),
        }),
        Err(error) => json!({
            "error": class(&error),
            "retry_after": match &error {
                Error::RateLimited(denial) => denial.retry_after().map(|retry| retry.as_secs_f64()),
                _ => None,
            },
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
    #[allow(clippy::too_many_lines)] // An arm for each call.
    async fn step(&self, step: &Value) -> Option<Value> {
        let call = step["call"].as_str().expect("a call");
        if call == "all" {
            return Some(self.all(step).await);
        }
        if matches!(call, "pause" | "resume" | "observe") {
            return Some(self.pause(step).await);
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
            "take" => match id {
                Some(id) => limit.take(&key).cost(cost).id(id).await.map(Some),
                None => limit.take(&key).cost(cost).await.map(Some),
            },
            "peek" => limit.peek(&key).cost(cost).await.map(Some),
            "wait" => match wait(&step["seconds"]) {
                Ok(seconds) => limit.wait(&key, seconds).cost(cost).await.map(Some),
                // A text that is no duration.
                Err(_) => limit.wait(&key, step["seconds"].as_str().unwrap_or("-1s")).cost(cost).await.map(Some),
            },
            "reserve" => limit.reserve(&key, wait(&step["seconds"]).expect("a duration")).cost(cost).await.map(Some),
            "admit" => match &step["wait"] {
                Value::Null => limit.admit(&key).cost(cost).await.map(Some),
                seconds => limit.admit(&key).cost(cost).wait(wait(seconds).expect("a duration")).await.map(Some),
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
                    Ok(charge) => {
                        let decision = charge.decision().clone();
                        self.run(inside, None).await.expect("no error");
                        match (used, raises) {
                            (Some(used), false) => charge.settle(used).await.expect("a cost"),
                            // The body returns early with an error of its own: the guard is dropped.
                            (used, true) => used.map_or(Ok(()), |used| charge.set_used(used)).expect("a cost"),
                            (None, false) => charge.finish().await.expect("no loss"),
                        }
                        Ok(Some(decision))
                    }
                }
            }
            "hold" => {
                let mut hold = self.lease(&name).hold(&key).units(cost);
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

    async fn pause(&self, step: &Value) -> Value {
        let limit = self.limit(self.policies.keys().next().expect("a limit"));
        let key = step["key"].as_str().expect("a text");
        // A text that is no duration stays as it is.
        let text = |value: &Value| match wait(value) {
            Ok(length) => length.to_string(),
            Err(_) => value.as_str().unwrap_or("-1s").to_string(),
        };
        let rest = match step["call"].as_str() {
            Some("pause") => limit.pause(key, &*text(&step["seconds"])).await,
            Some("resume") => match limit.resume(key).await {
                Ok(()) => return json!({ "none": true }),
                Err(error) => Err(error),
            },
            _ => {
                let response = &step["response"];
                // The types are those of `http`, as `reqwest` has them.
                let status = u16::try_from(response["status"].as_u64().expect("a status")).expect("a status");
                let status = StatusCode::from_u16(status).expect("a status");
                let rows = response["headers"].as_object().expect("headers").iter();
                let rows = rows.map(|(name, text)| (name.clone(), text.as_str().expect("a text").to_string()));
                let headers: HeaderMap = HeaderMap::try_from(&rows.collect::<HashMap<String, String>>()).expect("headers");
                let observe = limit.observe(key, status, &headers);
                match &step["max_pause"] {
                    Value::Null => observe.await,
                    most => observe.max_pause(&*text(most)).await,
                }
            }
        };
        rest.map_or_else(|error| outcome(Err(error)), |rest| json!({ "seconds": rest.as_secs_f64() }))
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

/// Runs all cases. `before` is called before each one, with whether half of the cases have run.
async fn run_cases(limits: Limits, ask: &dyn Fn(&[String]) -> redis::Value, before: impl Fn(bool)) {
    let cases = rows("cases");
    for (index, case) in cases.iter().enumerate() {
        before(index * 2 >= cases.len());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_on_a_server() {
    let server = Server::start();
    // A busy machine may need longer for a reply than a program would wait.
    let limits = Limits::open(url(&server)).expect("an address").timeout(LONG);
    run_cases(limits, &|words| ask(&server, words), |_| flush(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_on_a_cluster() {
    let cluster = Cluster::start();
    let limits = Limits::new(connection::Cluster::new(cluster.urls()).expect("addresses")).timeout(LONG);
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
    let limits = Limits::new(client.expect("an address")).timeout(LONG);
    let failed_over = std::cell::Cell::new(false);
    let first = watched.primary();
    let before = |half: bool| {
        if half && !failed_over.replace(true) {
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
    let before = |half: bool| {
        before(half);
        let limit = renewing.limit("warm", Gcra::new("10/m").expect("a policy")).expect("a name");
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current()
                .block_on(async { limit.charge("a", 1).await.expect("a charge").finish().await.expect("no loss") });
        });
    };
    run_cases(limits.clone(), &|words| ask(&watched.servers[watched.primary()], words), before).await;
    assert!(failed_over.get());
}

async fn run_rows(part: &str, policy: &str, limits: &Limits, on_down: &str) {
    let policy = table()[policy].clone();
    let world = World {
        limits: limits.clone(),
        policies: [("api".to_string(), policy)].into(),
        ask: &|_| panic!("there is no server to ask"),
    };
    let rows: Vec<Value> =
        rows(part).into_iter().filter(|row| row["on_down"].is_null() || row["on_down"] == on_down).collect();
    assert!(!rows.is_empty(), "{on_down}");
    world.run(&rows, None).await.expect("no error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_limits_are_closed_open_or_local() {
    let limits = Limits::open(format!("redis://127.0.0.1:{}", support::free_port())).expect("an address");
    run_rows("down", "down_policy", &limits, "closed").await;
    run_rows("down", "down_policy", &limits.clone().on_down(OnDown::Open), "open").await;
    let Policy::Gcra(gcra) = known_policy(&table()["local_policy"]) else { panic!("a Gcra") };
    run_rows("local", "down_policy", &limits.on_down(OnDown::Local(gcra)), "local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_module_gives_no_decision() {
    let server = Server::of(&server_program(), false, &[]);
    let limits = Limits::open(url(&server)).expect("an address").timeout(LONG);
    run_rows("no_module", "down_policy", &limits, "closed").await;
    run_rows("no_module", "down_policy", &limits.on_down(OnDown::Open), "open").await;
}
