//! Limits by name: RL.USE with the rule in a policy key, RL.POLICY, and SHADOW.

use std::collections::BTreeMap;

use fastrand::Rng;
use redis::{Connection, RedisResult, Value};
use support::{
    assert_same, call, command, error, held, info, inspect, limit, pipe, settle, snapshot, snapshots, traces, wait_for,
    watched_are_unchanged, Clocked, Held, Server,
};

/// A reply, with an error as it was on the wire.
#[derive(Debug, PartialEq)]
enum Answer {
    Value(Value),
    Error(String),
}

fn answer(client: &mut Connection, words: &str) -> Answer {
    match command(words).query::<Value>(client) {
        Ok(value) => Answer::Value(value),
        Err(error) => Answer::Error(format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())),
    }
}

fn set_policy(client: &mut Connection, words: &str) {
    assert_eq!(call::<String>(client, &format!("RL.POLICY {words}")), "OK");
}

fn refused(client: &mut Connection, words: &str) -> String {
    error(client, &command(words))
}

// ---- RL.USE is the command that states the rule ----

/// A pair of keys: calls on the first state their rule, and the same calls on the second name it.
struct Pair {
    literal: String,
    named: String,
    policy: String,
    /// The algorithm, and the words that follow the key.
    rule: (&'static str, String),
    shadow: bool,
    /// How many ids it has used.
    ids: u64,
}

/// Random calls on pairs of keys, under a frozen clock.
struct Twins {
    server: Clocked,
    client: Connection,
    random: Rng,
    pairs: Vec<Pair>,
    seen: BTreeMap<&'static str, u64>,
}

const KINDS: [&str; 5] = ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"];

impl Twins {
    fn start(seed: u64) -> Self {
        let server = Clocked::frozen(&["--appendonly", "yes", "--aof-use-rdb-preamble", "no"]);
        let client = server.client();
        let pair = |number| Pair {
            literal: format!("twin:a:{number:02}"),
            named: format!("twin:b:{number:02}"),
            policy: format!("policy:{number:02}"),
            rule: ("GCRA", "1 1".into()),
            shadow: false,
            ids: 0,
        };
        let pairs = (0..12).map(pair).collect();
        let mut twins = Self { server, client, random: Rng::with_seed(seed), pairs, seen: BTreeMap::new() };
        (0..12).for_each(|pair| twins.change_algorithm(pair));
        twins
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.usize(..all.len())]
    }

    fn see(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// Gives a pair another rule of the same algorithm.
    fn change_rule(&mut self, pair: usize) {
        let kind = self.pairs[pair].rule.0;
        let limit = match self.random.u32(0..12) {
            0 => 0,
            1 => 65_536,
            _ => self.random.u64(1..30),
        };
        let period = self.pick(&["10ms", "0.25", "1", "2500ms", "60s", "1H", "30d"]);
        let option = match (kind, self.random.u32(0..3)) {
            ("FIXED", 0) => " ALIGN 3ms".into(),
            ("SLIDE", 0) => " segments 7".into(),
            ("GCRA", 0) => format!(" Burst {}", self.random.u64(1..40)),
            ("BUCKET", 0) => format!(" CAPACITY {}", self.random.u64(1..40)),
            ("BUCKET", 1) => format!(" STEP capacity {}", self.random.u64(1..40)),
            _ => String::new(),
        };
        self.pairs[pair].rule.1 = format!("{limit} {period}{option}");
        self.pairs[pair].shadow = self.random.u32(0..4) == 0;
        self.store(pair);
    }

    /// Stores a pair's rule in its policy key: by RL.POLICY, or as a text in another form.
    fn store(&mut self, pair: usize) {
        let Pair { policy, rule: (kind, words), shadow, .. } = &self.pairs[pair];
        let shadow = if *shadow { " SHADOW" } else { "" };
        if self.random.bool() {
            set_policy(&mut self.client, &format!("{policy} {kind} {words}{shadow}"));
        } else {
            let text = format!("  {}\t{}\n{}", kind.to_lowercase(), words.replace(' ', "   "), shadow.to_lowercase());
            redis::cmd("SET").arg(policy).arg(text).exec(&mut self.client).expect("OK");
        }
    }

    fn change_algorithm(&mut self, pair: usize) {
        let Pair { literal, named, .. } = &self.pairs[pair];
        call::<i64>(&mut self.client, &format!("DEL {literal} {named}"));
        self.pairs[pair].rule.0 = self.pick(&KINDS);
        self.change_rule(pair);
    }

    /// The words of a call after the rule or the policy keys.
    fn words(&mut self, pair: usize) -> String {
        let holds = self.pairs[pair].rule.0 == "LEASE";
        let amount = match self.random.u32(0..12) {
            0..=4 => String::new(),
            5 | 6 => format!(" COST {}", self.random.u64(1..12)),
            7 | 8 => format!(" UPTO {}", self.random.u64(1..30)),
            9 => format!(" force {}", self.random.u64(1..50)),
            10 => format!(" REFUND {}", self.random.u64(1..9)),
            _ => self.pick(&[" COST 0", " COST", " UPTO 2 COST 1", " BRUST 3", " COST 1000000000000"]).into(),
        };
        let id = if self.random.u32(0..if holds { 12 } else { 3 }) > u32::from(!holds) {
            let ids = &mut self.pairs[pair].ids;
            if self.random.bool() {
                *ids += 1;
            }
            format!(" ID id:{}", ids.saturating_sub(self.random.u64(0..4)))
        } else {
            String::new()
        };
        let rest = match self.random.u32(0..10) {
            0 => " RESERVE 100ms",
            1 => " BLOCK 1",
            2 => " RENEW",
            _ => "",
        };
        format!("{amount}{id}{rest}")
    }

    /// The same call on both keys of a pair. In a transaction, where BLOCK answers at once.
    fn call(&mut self, pair: usize) {
        let words = self.words(pair);
        let Pair { literal, named, policy, rule: (kind, rule), shadow, .. } = &self.pairs[pair];
        let policies = match self.random.u32(0..4) {
            0 => format!("2 missing {policy}"),
            1 => format!("3 {policy} broken missing"),
            _ => format!("1 {policy}"),
        };
        let (one, other) = (format!("RL.{kind} {literal} {rule}{words}"), format!("RL.USE {named} {policies}{words}"));
        let context = format!("{one} | {other} | {shadow}");
        let (literal, named, shadow, blocks) = (literal.clone(), named.clone(), *shadow, words.contains("BLOCK"));
        let before = snapshot(&mut self.client, &named);
        let mut both = [&one, &other].map(|words| {
            if blocks {
                call::<()>(&mut self.client, "MULTI");
                if let Answer::Error(error) = answer(&mut self.client, words) {
                    call::<()>(&mut self.client, "DISCARD");
                    return Answer::Error(error);
                }
                return match answer(&mut self.client, "EXEC") {
                    Answer::Value(Value::Array(replies)) => match replies.into_iter().next() {
                        Some(Value::ServerError(error)) => {
                            Answer::Error(format!("{} {}", error.code(), error.details().unwrap_or_default()))
                        }
                        reply => Answer::Value(reply.expect("one reply")),
                    },
                    other => other,
                };
            }
            answer(&mut self.client, words)
        });
        // The server itself refuses a lease with so few words.
        if matches!(&both[0], Answer::Error(error) if error.starts_with("ERR wrong number of arguments")) {
            return assert!(matches!(&both[1], Answer::Error(_)), "{context}");
        }
        if let ([Answer::Error(_), _], true) = (&both, shadow) {
            self.see("errors under SHADOW");
        }
        if let (true, Answer::Value(value)) = (shadow, &mut both[0]) {
            let mut row: Vec<i64> = redis::from_redis_value(value.clone()).expect("five integers");
            let asked = |keyword: &str| {
                let mut words = words.split(' ').skip_while(|word| !word.eq_ignore_ascii_case(keyword));
                words.nth(1).map(|units| units.parse::<i64>().expect("units"))
            };
            let is_refund = asked("REFUND").is_some();
            if row[0] == 0 && !is_refund {
                self.see("shadowed denials");
                assert_eq!(snapshot(&mut self.client, &named), before, "{context}");
            }
            if !is_refund {
                row[0] = row[0].max(["COST", "UPTO", "FORCE"].into_iter().find_map(asked).unwrap_or(1));
            }
            row[3] = 0;
            *value = Value::Array(row.into_iter().map(Value::Int).collect());
        }
        assert_eq!(both[0], both[1], "{context}");
        self.see(match &both[0] {
            Answer::Error(_) => "errors",
            Answer::Value(Value::Array(row)) if row[0] == Value::Int(0) => "denials",
            _ => "grants",
        });
        let [literal, named] = [literal, named].map(|key| snapshot(&mut self.client, &key));
        assert_eq!(literal, named, "{context}");
    }

    /// Something else than a call: on both keys, or on the policy key.
    fn other(&mut self, pair: usize) {
        let Pair { literal, named, policy, ids, .. } = &self.pairs[pair];
        let (literal, named, policy, ids) = (literal.clone(), named.clone(), policy.clone(), *ids);
        let client = &mut self.client;
        let both = |client: &mut Connection, words: &dyn Fn(&str) -> String| {
            assert_eq!(answer(client, &words(&literal)), answer(client, &words(&named)), "{}", words(&literal));
        };
        match self.random.u32(0..10) {
            0 => self.change_algorithm(pair),
            1 | 2 => self.change_rule(pair),
            3 => {
                let length = self.pick(&["0", "50ms", "2"]);
                both(&mut self.client, &|key| format!("RL.PAUSE {key} {length}"));
            }
            4 | 5 => {
                let (id, units) = (ids.saturating_sub(self.random.u64(0..5)), self.random.u64(0..6));
                both(client, &|key| format!("RL.SETTLE {key} id:{id} {units}"));
            }
            6 => both(client, &|key| format!("RL.RELEASE {key} id:{ids}")),
            7 => {
                // The policy disappears.
                call::<i64>(client, &format!("DEL {policy}"));
                let before = snapshot(client, &named);
                assert!(refused(client, &format!("RL.USE {named} 2 {policy} missing COST 2")).starts_with("NOPOLICY "));
                assert_eq!(snapshot(client, &named), before);
                self.store(pair);
            }
            8 => {
                // The policy is broken. The next key does not serve instead.
                let text = self
                    .random
                    .choice(["GCRA 1", "GCRA x 1s", "no rule", "FIXED 1 1 UNTIL 5", "GCRA 1 1 COST 2"])
                    .expect("one");
                redis::cmd("SET").arg(&policy).arg(text).exec(client).expect("OK");
                call::<()>(client, "SET good GCRA");
                set_policy(client, "good GCRA 10 1s");
                let error = refused(client, &format!("RL.USE {named} 2 {policy} good"));
                assert!(error.starts_with(&format!("ERR policy key '{policy}': ")), "{error}");
                self.store(pair);
            }
            _ => {
                // A policy key before the other overrides it, as long as it exists.
                let Pair { rule: (kind, rule), shadow, .. } = &self.pairs[pair];
                let plain = format!("{policy}:plain");
                if !shadow && !matches!(*kind, "LEASE") {
                    set_policy(client, &format!("{plain} {kind} {rule}"));
                    let one = answer(client, &format!("RL.{kind} {literal} {rule}"));
                    set_policy(client, "other LEASE 1 1");
                    assert_eq!(one, answer(client, &format!("RL.USE {named} 3 {plain} other {policy}")));
                    call::<i64>(client, &format!("DEL {plain}"));
                }
            }
        }
    }

    fn pass(&mut self) {
        let us = match self.random.u32(0..10) {
            0..=3 => 0,
            4..=6 => self.random.i64(0..20_000),
            7 | 8 => self.random.i64(0..3_000_000),
            _ => self.random.i64(0..100_000_000_000),
        };
        self.server.pass(us);
    }

    /// The effects on one key of each pair, in the append-only file: the commands with the number of the pair for the key.
    fn effects(&self, keys: &str) -> Vec<Vec<Vec<u8>>> {
        let folder = std::fs::read_dir(self.server.dir().join("appendonlydir")).expect("the folder");
        let mut paths = folder.map(|entry| entry.expect("an entry").path());
        let path = paths.find(|path| path.to_string_lossy().ends_with(".incr.aof")).expect("the file of effects");
        let bytes = std::fs::read(path).expect("the file");
        let mut effects = Vec::new();
        let mut rest = &bytes[..];
        let line = |rest: &mut &[u8]| {
            let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
            let number = std::str::from_utf8(&rest[1..end]).ok()?.parse::<usize>().ok()?;
            *rest = &rest[end + 2..];
            Some(number)
        };
        while let Some(count) = line(&mut rest) {
            let mut words = Vec::new();
            for _ in 0..count {
                let length = line(&mut rest).expect("a length");
                words.push(rest[..length].to_vec());
                rest = &rest[length + 2..];
            }
            if let Some(number) = words.get(1).and_then(|key| key.strip_prefix(keys.as_bytes())) {
                words[1] = number.to_vec();
                // This test deletes both keys of a pair by one command, which is no effect of a call.
                if words[0] != b"DEL" || words.len() == 2 {
                    effects.push(words);
                }
            }
        }
        effects
    }
}

#[test]
fn a_policy_key_says_what_the_command_says() {
    let number = |name: &str, default: u64| std::env::var(name).ok().map_or(default, |text| text.parse().expect(name));
    let (calls, seed) = (number("NAMED_CALLS", 6_000), number("NAMED_SEED", 1));
    let mut twins = Twins::start(seed);
    for number in 0..calls {
        let pair = twins.random.usize(..twins.pairs.len());
        twins.pass();
        if twins.random.u32(0..8) == 0 {
            twins.other(pair);
        }
        twins.call(pair);
        if number % 50_000 == 49_999 {
            println!("seed {seed}: {number} calls the same");
        }
    }
    call::<()>(&mut twins.client, "PING");
    let (literal, named) = (twins.effects("twin:a:"), twins.effects("twin:b:"));
    let by_key = |effects: Vec<Vec<Vec<u8>>>| {
        let mut keys: BTreeMap<Vec<u8>, Vec<Vec<Vec<u8>>>> = BTreeMap::new();
        effects.into_iter().for_each(|effect| keys.entry(effect[1].clone()).or_default().push(effect));
        keys
    };
    assert!(literal.len() as u64 > calls / 10, "{} effects", literal.len());
    println!("seed {seed}: {calls} calls, {} effects on each key of a pair, {:?}", literal.len(), twins.seen);
    assert_eq!(by_key(literal), by_key(named));
    for what in ["grants", "denials", "errors", "shadowed denials", "errors under SHADOW"] {
        assert!(twins.seen.get(what).is_some_and(|&times| times > calls / 200), "{what}: {:?}", twins.seen);
    }
    // A restart from the file keeps both keys, and the policies without a deadline.
    let before = snapshots(&mut twins.client);
    call::<()>(&mut twins.client, "DEBUG LOADAOF");
    assert_same(&snapshots(&mut twins.client), &before);
    assert!(before.iter().filter(|(key, _)| key.starts_with("policy:")).all(|(_, policy)| policy.deadline_ms == -1));
}
