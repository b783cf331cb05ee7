//! Limits by name: RL.USE with the rule in a policy key, RL.POLICY, and SHADOW.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use fastrand::Rng;
use redis::{Connection, RedisResult, Value};
use support::witness::Watched;
use support::{
    assert_same, call, command, error, held, info, inspect, limit, settle, snapshot, snapshots, traces, wait_for,
    watched_are_unchanged, Clocked, Held, Server,
};

/// A reply, with an error as it was on the wire.
#[derive(Debug, PartialEq)]
enum Answer {
    Value(Value),
    Error(String),
}

fn answer(client: &mut Connection, words: &str) -> Answer {
    answered(command(words).query(client))
}

fn answered(reply: RedisResult<Value>) -> Answer {
    match reply {
        Ok(value) => Answer::Value(value),
        Err(error) => Answer::Error(format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default())),
    }
}

/// The counts of `INFO rl`.
fn statistics(client: &mut Connection) -> BTreeMap<String, i64> {
    let text: String = call(client, "INFO rl");
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.filter_map(|(name, value)| Some((name.into(), value.parse().ok()?))).collect()
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
    /// How many denials were answered as grants.
    shadowed: usize,
}

/// The events of each key of a pair, in their order.
type Events = BTreeMap<String, Vec<String>>;

/// Random calls on pairs of keys, under a frozen clock.
struct Twins {
    server: Clocked,
    client: Connection,
    random: Rng,
    pairs: Vec<Pair>,
    seen: BTreeMap<&'static str, u64>,
    events: Option<JoinHandle<Events>>,
}

/// Where the events of the pairs' keys are published, without the number of the pair.
const CHANNEL: &str = "__keyspace@0__:twin:";

/// How a call is made.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Direct,
    Transaction,
    Script,
}

const KINDS: [&str; 5] = ["FIXED", "SLIDE", "GCRA", "BUCKET", "LEASE"];

impl Twins {
    fn start(seed: u64) -> Self {
        let append_only = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
        let server = Clocked::frozen(&[&append_only[..], &["--notify-keyspace-events", "Kd"]].concat());
        let client = server.client();
        let events = Self::listen(server.client());
        let pair = |number| Pair {
            literal: format!("twin:a:{number:02}"),
            named: format!("twin:b:{number:02}"),
            policy: format!("policy:{number:02}"),
            rule: ("GCRA", "1 1".into()),
            shadow: false,
            ids: 0,
            shadowed: 0,
        };
        let pairs = (0..12).map(pair).collect();
        let mut twins =
            Self { server, client, random: Rng::with_seed(seed), pairs, seen: BTreeMap::new(), events: Some(events) };
        (0..12).for_each(|pair| twins.change_algorithm(pair));
        twins
    }

    /// Collects the events of the pairs' keys, until one is published for the key `twin:end`.
    fn listen(mut client: Connection) -> JoinHandle<Events> {
        let (listens, ready) = mpsc::channel();
        let events = thread::spawn(move || {
            let mut client = client.as_pubsub();
            client.psubscribe(format!("{CHANNEL}*")).expect("a subscription");
            listens.send(()).expect("the test");
            let mut events = Events::new();
            loop {
                let message = client.get_message().expect("a message");
                match message.get_channel_name().strip_prefix(CHANNEL).expect("the channel") {
                    "end" => return events,
                    key => events.entry(key.into()).or_default().push(message.get_payload().expect("a text")),
                }
            }
        });
        ready.recv().expect("a subscription");
        events
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

    /// Makes a call, in the way `way`. `policies` are the policy keys in its words.
    fn make(client: &mut Connection, way: Way, words: &str, keys: &str) -> Answer {
        match way {
            Way::Direct => answer(client, words),
            Way::Script => {
                let mut script = redis::cmd("EVAL");
                script.arg("return redis.pcall(unpack(ARGV))").arg(keys.split(' ').count());
                script.arg(keys.split(' ').chain(words.split(' ')).collect::<Vec<_>>());
                answered(script.query(client))
            }
            Way::Transaction => {
                call::<()>(client, "MULTI");
                if let Answer::Error(error) = answer(client, words) {
                    call::<()>(client, "DISCARD");
                    return Answer::Error(error);
                }
                match answer(client, "EXEC") {
                    Answer::Value(Value::Array(replies)) => match replies.into_iter().next() {
                        Some(Value::ServerError(error)) => {
                            Answer::Error(format!("{} {}", error.code(), error.details().unwrap_or_default()))
                        }
                        reply => Answer::Value(reply.expect("one reply")),
                    },
                    other => other,
                }
            }
        }
    }

    /// The same call on both keys of a pair. With BLOCK in a transaction or a script, where it answers at once.
    fn call(&mut self, pair: usize) {
        let words = self.words(pair);
        let (way, counts) = (self.random.u32(0..16), self.random.u32(0..16) == 0);
        let way = match way {
            0 | 1 => Way::Script,
            2 => Way::Transaction,
            _ if words.contains("BLOCK") => Way::Transaction,
            _ => Way::Direct,
        };
        let Pair { literal, named, policy, rule: (kind, rule), shadow, .. } = &self.pairs[pair];
        let (number, policies) = match self.random.u32(0..4) {
            0 => (2, format!("missing {policy}")),
            1 => (3, format!("{policy} broken missing")),
            _ => (1, policy.clone()),
        };
        let (one, other) =
            (format!("RL.{kind} {literal} {rule}{words}"), format!("RL.USE {named} {number} {policies}{words}"));
        let context = format!("{one} | {other} | {shadow}");
        let (literal, named, shadow) = (literal.clone(), named.clone(), *shadow);
        let before = snapshot(&mut self.client, &named);
        let statistics = |client: &mut Connection| if counts { statistics(client) } else { BTreeMap::new() };
        let start = statistics(&mut self.client);
        let first = Self::make(&mut self.client, way, &one, &literal);
        let middle = statistics(&mut self.client);
        let second = Self::make(&mut self.client, way, &other, &format!("{named} {policies}"));
        let end = statistics(&mut self.client);
        let mut both = [first, second];
        // The server itself refuses a lease with so few words.
        let few = |error: &str| error.to_ascii_lowercase().starts_with("err wrong number of arg");
        if matches!(&both[0], Answer::Error(error) if few(error)) {
            return assert!(matches!(&both[1], Answer::Error(_)), "{context}");
        }
        if let ([Answer::Error(_), _], true) = (&both, shadow) {
            self.see("errors under SHADOW");
        }
        let mut shadowed = 0;
        if let (true, Answer::Value(value)) = (shadow, &mut both[0]) {
            let mut row: Vec<i64> = redis::from_redis_value(value.clone()).expect("five integers");
            let asked = |keyword: &str| {
                let mut words = words.split(' ').skip_while(|word| !word.eq_ignore_ascii_case(keyword));
                words.nth(1).map(|units| units.parse::<i64>().expect("units"))
            };
            let is_refund = asked("REFUND").is_some();
            if row[0] == 0 && !is_refund {
                shadowed = 1;
                self.see("shadowed denials");
                self.pairs[pair].shadowed += 1;
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
        if counts {
            // Under SHADOW, a denial is counted as such, and once more.
            let mut expected: BTreeMap<_, _> = middle.iter().map(|(name, after)| (name, after - start[name])).collect();
            let name = end.keys().find(|name| **name == format!("rl_{}_shadowed", self.pairs[pair].rule.0.to_lowercase()));
            *expected.get_mut(name.expect("a field")).expect("a field") += shadowed;
            let counted: BTreeMap<_, _> = end.iter().map(|(name, after)| (name, after - middle[name])).collect();
            assert_eq!(counted, expected, "{context}");
            self.see("counts");
        }
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
        match self.random.u32(0..11) {
            0 => self.change_algorithm(pair),
            1 | 2 => self.change_rule(pair),
            9 => {
                // Both keys hold the same value that is no limiter's, or that no policy of theirs reads.
                let foreign =
                    self.pick(&["SET # text", "SET # 1800000002000000000", "RL.GCRA # 5 1d COST 2", "RL.LEASE # 5 1d ID a"]);
                call::<i64>(&mut self.client, &format!("DEL {literal} {named}"));
                call::<Value>(&mut self.client, &foreign.replace('#', "foreign"));
                for key in [&literal, &named] {
                    call::<i64>(&mut self.client, &format!("COPY foreign {key}"));
                }
                call::<i64>(&mut self.client, "DEL foreign");
                let kind = self.pairs[pair].rule.0;
                // RL.USE alone carries over the record of another algorithm.
                if !foreign.starts_with("RL.GCRA") || matches!(kind, "GCRA" | "LEASE") {
                    (0..3).for_each(|_| self.call(pair));
                    self.see("foreign values");
                }
                // The effects of a deletion of both are not compared.
                call::<i64>(&mut self.client, &format!("DEL {literal} {named}"));
            }
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
    // Events: under SHADOW, a denial has one of its own.
    call::<i64>(&mut twins.client, &format!("PUBLISH {CHANNEL}end end"));
    let mut events = twins.events.take().and_then(|events| events.join().ok()).expect("the events");
    for (number, pair) in twins.pairs.iter().enumerate() {
        let [literal, mut named] = ["a", "b"].map(|twin| events.remove(&format!("{twin}:{number:02}")).unwrap_or_default());
        let shadowed = named.iter_mut().filter(|event| *event == "rl.shadow");
        assert_eq!(shadowed.map(|event| *event = "rl.denied".into()).count(), pair.shadowed);
        assert_eq!(literal, named);
    }
    let (literal, named) = (twins.effects("twin:a:"), twins.effects("twin:b:"));
    let by_key = |effects: Vec<Vec<Vec<u8>>>| {
        let mut keys: BTreeMap<Vec<u8>, Vec<Vec<Vec<u8>>>> = BTreeMap::new();
        effects.into_iter().for_each(|effect| keys.entry(effect[1].clone()).or_default().push(effect));
        keys
    };
    assert!(literal.len() as u64 > calls / 10, "{} effects", literal.len());
    println!("seed {seed}: {calls} calls, {} effects on each key of a pair, {:?}", literal.len(), twins.seen);
    assert_eq!(by_key(literal), by_key(named));
    for what in ["grants", "denials", "errors", "shadowed denials", "errors under SHADOW", "counts", "foreign values"] {
        assert!(twins.seen.get(what).is_some_and(|&times| times > calls / 250), "{what}: {:?}", twins.seen);
    }
    // A restart from the file keeps both keys, and the policies without a deadline.
    let before = snapshots(&mut twins.client);
    call::<()>(&mut twins.client, "DEBUG LOADAOF");
    assert_same(&snapshots(&mut twins.client), &before);
    assert!(before.iter().filter(|(key, _)| key.starts_with("policy:")).all(|(_, policy)| policy.deadline_ms == -1));
}

// ---- Policy keys ----

#[test]
fn a_policy_key_is_an_ordinary_string_without_a_deadline() {
    let (server, mut client) = Watched::on_port(&[]).and_client();
    let replica = server.replica(&[]);
    for (given, stored) in [
        ("gcra 200 1s burst 20", "GCRA 200 1s BURST 20"),
        ("Lease 010 1H shadow", "LEASE 010 1H SHADOW"),
        ("bucket 5 0.50 step Capacity 7", "BUCKET 5 0.50 STEP CAPACITY 7"),
        ("FIXED 5 1d SHADOW ALIGN -8h", "FIXED 5 1d SHADOW ALIGN -8h"),
    ] {
        set_policy(&mut client, &format!("policy {given}"));
        let expected = support::Snapshot { value: Some(stored.into()), deadline_ms: -1 };
        assert_eq!(snapshot(&mut client, "policy"), expected);
        server.wait_until_in_step(&replica);
        assert_eq!(snapshot(&mut replica.client(), "policy"), expected);
        // A deadline that an operator has set goes, as with SET.
        call::<i64>(&mut client, "EXPIRE policy 100");
    }
    assert_eq!(server.events("rl.policy", "policy").len(), 4);
    // A limiter's value, and one of another type, is never overwritten; any other string is.
    call::<()>(&mut client, "SET text 123");
    set_policy(&mut client, "text GCRA 1 1");
    call::<()>(&mut client, "SET cell 1800000000000000000");
    limit(&mut client, "RL.SLIDE slide 5 1d");
    call::<i64>(&mut client, "RL.PAUSE paused 1h");
    call::<i64>(&mut client, "LPUSH list a");
    let before = snapshots_of(&mut client, &["cell", "slide", "paused"]);
    for (key, holds) in [("cell", "limiter"), ("slide", "limiter"), ("paused", "limiter"), ("list", "list")] {
        let error = refused(&mut client, &format!("RL.POLICY {key} GCRA 1 1"));
        assert_eq!(error, format!("WRONGTYPE key holds a {holds}, which RL.POLICY does not overwrite"));
    }
    assert_eq!(snapshots_of(&mut client, &["cell", "slide", "paused"]), before);
    for (words, error) in [
        ("GCRA 1", "ERR wrong number of arguments for 'rl.policy' command"),
        ("BRUST 1 1", "ERR unknown algorithm 'BRUST': must be FIXED, SLIDE, GCRA, BUCKET or LEASE"),
        ("FIXED 1 1 UNTIL 1800000000", "ERR unknown option 'UNTIL' for RL.POLICY"),
        ("FIXED 1 1 COST 2", "ERR unknown option 'COST' for RL.POLICY"),
        ("GCRA 1 1 ID a", "ERR unknown option 'ID' for RL.POLICY"),
        ("GCRA 1 1 BLOCK 1", "ERR unknown option 'BLOCK' for RL.POLICY"),
        ("GCRA 1 1 SHADOW SHADOW", "ERR SHADOW is given twice"),
        ("LEASE 65537 1", "ERR limit must be a whole number from 0 to 65536"),
    ] {
        assert_eq!(refused(&mut client, &format!("RL.POLICY other {words}")), error, "{words}");
    }
    assert!(refused(&mut client, &format!("RL.POLICY other GCRA {}1 1", "0".repeat(300))).starts_with("ERR "));
    assert_eq!(call::<i64>(&mut client, "EXISTS other"), 0);
}

fn snapshots_of(client: &mut Connection, keys: &[&str]) -> Vec<support::Snapshot> {
    keys.iter().map(|key| snapshot(client, key)).collect()
}

#[test]
fn what_is_no_policy_is_an_error_that_names_the_key() {
    let (_server, mut client) = Server::start().and_client();
    set_policy(&mut client, "good GCRA 10 60");
    set_policy(&mut client, "window FIXED 10 60");
    limit(&mut client, "RL.USE key 1 good");
    call::<i64>(&mut client, "LPUSH list a");
    let long = format!("GCRA 10 60{}", " ".repeat(250));
    redis::cmd("SET").arg("long").arg(&long).exec(&mut client).expect("OK");
    redis::cmd("SET").arg("empty").arg("").exec(&mut client).expect("OK");
    redis::cmd("SET").arg("bytes").arg(&b"\0\xff gcra"[..]).exec(&mut client).expect("OK");
    let before = (snapshot(&mut client, "key"), traces(&mut client));
    for (words, error) in [
        ("1 none", "NOPOLICY none of the policy keys exists"),
        ("2 none nobody", "NOPOLICY none of the policy keys exists"),
        ("1 list", "WRONGTYPE policy key 'list' holds a list, not a string"),
        ("2 list good", "WRONGTYPE policy key 'list' holds a list, not a string"),
        ("2 empty good", "ERR policy key 'empty': unknown algorithm '': must be FIXED, SLIDE, GCRA, BUCKET or LEASE"),
        (
            "2 bytes good",
            "ERR policy key 'bytes': unknown algorithm '\\x00\\xff': must be FIXED, SLIDE, GCRA, BUCKET or LEASE",
        ),
        ("1 long", "ERR policy key 'long': a policy must be at most 256 bytes long"),
        ("2 good", "ERR fewer policy keys than numpolicies"),
        ("0 good", "ERR numpolicies must be a whole number from 1 to 16"),
        ("17 good", "ERR numpolicies must be a whole number from 1 to 16"),
        ("x good", "ERR numpolicies must be a whole number from 1 to 16"),
        ("1 good BURST 3", "ERR BURST is part of the policy, not of a call of RL.USE"),
        ("1 window UNTIL 5", "ERR UNTIL and RL.USE can't be combined"),
        ("1 good RENEW", "ERR unknown option 'RENEW' for RL.GCRA"),
        ("1 good SHADOW", "ERR unknown option 'SHADOW' for RL.GCRA"),
        ("1 good COST 2 UPTO 3", "ERR COST and UPTO can't be combined"),
    ] {
        assert_eq!(refused(&mut client, &format!("RL.USE key {words}")), error, "{words}");
    }
    assert_eq!((snapshot(&mut client, "key"), traces(&mut client)), before);
    // The key of the limiter itself holds no limiter here.
    assert!(refused(&mut client, "RL.USE good 1 good").starts_with("WRONGTYPE key holds a string"));
    assert_eq!(refused(&mut client, "RL.USE list 1 good"), refused(&mut client, "RL.GCRA list 10 60"));
    // Exactly 256 bytes are a policy.
    redis::cmd("SET").arg("long").arg(&long[..256]).exec(&mut client).expect("OK");
    assert_eq!(limit(&mut client, "RL.USE other 1 long")[..3], [1, 10, 9]);
}

#[test]
fn rights_bind_both_kinds_of_keys() {
    let (server, mut owner) = Server::start().and_client();
    set_policy(&mut owner, "policy:api GCRA 10 60");
    call::<()>(&mut owner, "ACL SETUSER app on >secret +@all ~user:* %R~policy:*");
    let mut app = server.client();
    call::<()>(&mut app, "AUTH app secret");
    assert_eq!(limit(&mut app, "RL.USE user:1 1 policy:api")[..3], [1, 10, 9]);
    for words in [
        "RL.USE user:1 1 other",
        "RL.USE user:1 2 policy:api other",
        "RL.USE other 1 policy:api",
        "RL.USE policy:api 1 policy:api",
    ] {
        assert!(refused(&mut app, words).starts_with("NOPERM "), "{words}");
    }
    assert!(refused(&mut app, "RL.POLICY policy:api GCRA 1000 1").starts_with("NOPERM "));
    let keys: Vec<String> = call(&mut owner, "COMMAND GETKEYS RL.USE user:1 2 policy:a policy:b COST 4");
    assert_eq!(keys, ["user:1", "policy:a", "policy:b"]);
    // Reading a policy changes nothing, and a denied call does not either.
    limit(&mut owner, "RL.USE user:1 1 policy:api FORCE 20");
    call::<()>(&mut owner, "WATCH user:1 policy:api");
    let before = traces(&mut owner);
    assert_eq!(limit(&mut owner, "RL.USE user:1 2 none policy:api")[0], 0);
    assert_eq!(traces(&mut owner), before);
    assert!(watched_are_unchanged(&mut owner));
    // A read-only replica refuses the call, as that of the limiter's own command.
    let (_replica, mut client) = Server::on_port(&["--replicaof", "127.0.0.1 1"]).and_client();
    assert!(refused(&mut client, "RL.USE user:1 1 policy:api").starts_with("READONLY "));
}

#[test]
fn a_cluster_finds_all_keys_of_a_call() {
    let (_node, mut client) = Server::node().and_client();
    call::<()>(&mut client, "CLUSTER ADDSLOTSRANGE 0 8191");
    wait_for("the slots", || call::<String>(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
    // The slot of {b} is 3300, that of {a} 15495.
    set_policy(&mut client, "{b}:policy GCRA 10 60");
    assert_eq!(limit(&mut client, "RL.USE {b}:user 2 {b}:none {b}:policy")[..3], [1, 10, 9]);
    assert!(refused(&mut client, "RL.USE {b}:user 1 {a}:policy").starts_with("CROSSSLOT "));
    assert!(refused(&mut client, "RL.USE {b}:user 2 {b}:policy {c}:policy").starts_with("CROSSSLOT "));
    assert!(refused(&mut client, "RL.USE {a}:user 1 {a}:policy").starts_with("CLUSTERDOWN Hash slot not served"));
}

#[test]
fn without_memory_it_refuses_what_the_command_that_states_the_rule_refuses() {
    const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
    let (_server, mut client) = Server::start().and_client();
    set_policy(&mut client, "rate GCRA 10 60");
    set_policy(&mut client, "lease LEASE 10 60");
    limit(&mut client, "RL.USE rated 1 rate");
    limit(&mut client, "RL.USE leases 1 lease ID a COST 2");
    call::<()>(&mut client, "CONFIG SET maxmemory 1");
    for words in [
        "RL.USE rated 1 rate",
        "RL.USE rated 1 rate REFUND 1",
        "RL.USE new 1 rate",
        "RL.USE leases 1 lease ID b",
        "RL.POLICY rate GCRA 1 1",
    ] {
        assert_eq!(refused(&mut client, words), OOM, "{words}");
    }
    assert_eq!(limit(&mut client, "RL.USE leases 1 lease ID a")[..3], [2, 10, 8]);
}

// ---- SHADOW ----

#[test]
fn no_caller_sees_a_denial_under_shadow_and_the_operator_does() {
    let (server, mut client) = Watched::start().and_client();
    let row = |client: &mut Connection, words: &str| {
        let row = limit(client, &format!("RL.USE key 1 policy {words}"));
        [row[0], row[1], row[2], row[3]]
    };
    set_policy(&mut client, "policy FIXED 5 1d SHADOW");
    assert_eq!(row(&mut client, "COST 4"), [4, 5, 1, 0]);
    // A partial grant is charged, and answered in full.
    assert_eq!(row(&mut client, "UPTO 3"), [3, 5, 0, 0]);
    let full = snapshot(&mut client, "key");
    let before = traces(&mut client);
    for (words, granted) in [("", 1), ("COST 7", 7), ("UPTO 9", 9), ("COST 2 BLOCK 1", 2), ("ID a", 1), ("RESERVE 1s", 1)] {
        assert_eq!(row(&mut client, words), [granted, 5, 0, 0], "{words}");
    }
    assert_eq!((snapshot(&mut client, "key"), traces(&mut client)), (full.clone(), before));
    // No id is remembered, and a booking is charged, but answered without its wait.
    assert_eq!(call::<Option<Vec<i64>>>(&mut client, "RL.SETTLE key a 0"), None);
    assert_eq!(row(&mut client, "RESERVE 1d"), [1, 5, 0, 0]);
    assert_ne!(snapshot(&mut client, "key"), full);
    assert_eq!(row(&mut client, "REFUND 100"), [6, 5, 5, 0]);
    assert_eq!(row(&mut client, "REFUND 1"), [0, 5, 5, 0]);
    // By a pause, and by limit 0.
    call::<i64>(&mut client, "RL.PAUSE key 1h");
    assert_eq!(row(&mut client, "COST 2"), [2, 5, 0, 0]);
    set_policy(&mut client, "policy FIXED 0 1d SHADOW");
    assert_eq!(row(&mut client, "COST 3"), [3, 0, 0, 0]);
    assert_eq!(row(&mut client, "REFUND 3"), [0, 0, 0, 0]);
    let counts = ["rl_fixed_denied", "rl_fixed_shadowed"].map(|field| info(&mut client, "rl", field));
    assert_eq!(counts, [8, 8]);
    assert_eq!((server.events("rl.shadow", "key").len(), server.events("rl.denied", "key").len()), (8, 0));
    let top: Vec<BTreeMap<String, Value>> = call(&mut client, "RL.TOP");
    assert_eq!(top[0]["denials"], Value::Int(8));
    // Enforced, the same call is denied.
    call::<i64>(&mut client, "DEL key");
    set_policy(&mut client, "policy FIXED 5 1d");
    assert_eq!(row(&mut client, "COST 6"), [0, 5, 5, -1]);
    assert_eq!(info(&mut client, "rl", "rl_fixed_shadowed"), 8);
}

#[test]
fn a_line_denies_under_shadow_but_nobody_stands_in_it() {
    let (server, mut client) = Server::start().and_client();
    set_policy(&mut client, "strict GCRA 1 30s");
    set_policy(&mut client, "tried GCRA 100 30s SHADOW");
    limit(&mut client, "RL.USE key 1 strict");
    let waiting = Held::send(&server, "RL.USE key 1 strict BLOCK 60");
    wait_for("a line", || held(&mut client) == 1);
    let before = snapshot(&mut client, "key");
    assert_eq!(limit(&mut client, "RL.USE key 1 tried COST 3 BLOCK 10")[..4], [3, 100, 99, 0]);
    assert_eq!((snapshot(&mut client, "key"), held(&mut client)), (before, 1));
    assert_eq!(info(&mut client, "rl", "rl_gcra_shadowed"), 1);
    // A lease that is not there is not renewed, and the caller does not notice.
    set_policy(&mut client, "leases LEASE 1 1h SHADOW");
    assert_eq!(limit(&mut client, "RL.USE held 1 leases ID a")[..4], [1, 1, 0, 0]);
    assert_eq!(limit(&mut client, "RL.USE held 1 leases ID b")[..4], [1, 1, 0, 0]);
    assert_eq!(limit(&mut client, "RL.USE held 1 leases ID c RENEW")[..4], [1, 1, 0, 0]);
    assert_eq!(call::<Option<Vec<i64>>>(&mut client, "RL.RELEASE held b"), None);
    drop(waiting);
}

// ---- Policies that change under waiting calls and under load ----

#[test]
fn a_waiting_call_keeps_its_rule_and_later_calls_have_the_new_one() {
    let (server, mut client) = Server::start().and_client();
    set_policy(&mut client, "policy FIXED 2 60s");
    assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 2")[0], 2);
    let mut first = Held::send(&server, "RL.USE key 1 policy BLOCK 1m ID first");
    wait_for("the first to wait", || held(&mut client) == 1);
    // The limit is raised, of which only later calls know. They come behind the first.
    set_policy(&mut client, "policy FIXED 100 60s");
    let denied = limit(&mut client, "RL.USE key 1 policy");
    assert!(denied[..3] == [0, 100, 98] && denied[3] >= 1, "{denied:?}");
    // Nor does SHADOW let the waiting call through, though it answers later ones as grants; nor a policy that is broken, or a list.
    set_policy(&mut client, "policy FIXED 100 60s SHADOW");
    assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 3")[..4], [3, 100, 98, 0]);
    call::<()>(&mut client, "SET policy broken");
    assert!(refused(&mut client, "RL.USE key 1 policy").starts_with("ERR policy key 'policy': "));
    call::<i64>(&mut client, "DEL policy");
    call::<i64>(&mut client, "LPUSH policy a");
    assert!(refused(&mut client, "RL.USE key 1 policy").starts_with("WRONGTYPE policy key 'policy' holds a list"));
    call::<i64>(&mut client, "DEL policy");
    set_policy(&mut client, "policy FIXED 100 60s");
    assert_eq!((held(&mut client), limit(&mut client, "RL.PEEK FIXED key 2 60s")[2]), (1, 0));
    let mut second = Held::send(&server, "RL.USE key 1 policy COST 5 BLOCK 1m");
    wait_for("both to wait", || held(&mut client) == 2);
    call::<()>(&mut client, "DEL policy");
    limit(&mut client, "RL.FIXED key 2 60s REFUND 1");
    assert_eq!(first.reply().row.expect("a row")[..3], [1, 2, 0]);
    assert_eq!(second.reply().row.expect("a row")[..3], [5, 100, 93]);
}

#[test]
fn a_denial_after_a_change_of_the_algorithm_tells_when_the_units_come_back() {
    let (server, mut client) = Server::start().and_client();
    set_policy(&mut client, "policy SLIDE 5 1h");
    assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 5")[0], 5);
    assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 5 RESERVE 2h")[0], 5);
    set_policy(&mut client, "policy FIXED 5 1s");
    // The booking acts in an hour. Until then the log says that units are in use, since no denial changes it.
    let in_an_hour = 3_500_000..=3_602_000;
    let row = limit(&mut client, "RL.USE key 1 policy");
    assert!(row[..3] == [0, 5, 0] && row[3..].iter().all(|time| in_an_hour.contains(time)), "{row:?}");
    let mut waiting = Held::send(&server, "RL.USE key 1 policy BLOCK 1d");
    wait_for("the wait", || held(&mut client) == 1);
    assert_eq!(call::<i64>(&mut client, &format!("CLIENT UNBLOCK {}", waiting.id)), 1);
    let row = waiting.reply().row.expect("a denial");
    // A wait of a day would be long enough.
    assert!(row[..4] == [0, 5, 0, 1] && in_an_hour.contains(&row[4]), "{row:?}");
}

/// The four rate algorithms, as rules with such a period.
fn rates(limit: u32, period: &str) -> [String; 6] {
    ["FIXED", "SLIDE", "GCRA", "BUCKET", "SLIDE segments", "BUCKET step"].map(|rule| match rule.split_once(' ') {
        Some(("SLIDE", _)) => format!("SLIDE {limit} {period} SEGMENTS 10"),
        Some((kind, _)) => format!("{kind} {limit} {period} STEP"),
        None => format!("{rule} {limit} {period}"),
    })
}

/// All pairs of two algorithms: the rule before a change, and the one after it.
fn changes(limit: u32, before: &str, after: &str) -> Vec<(String, String)> {
    let kind = |rule: &str| rule.split(' ').next().map(String::from);
    let [olds, news] = [before, after].map(|period| rates(limit, period));
    let pairs = olds.iter().flat_map(|old| news.iter().map(move |new| (old.clone(), new.clone())));
    pairs.filter(|(old, new)| kind(old) != kind(new)).collect()
}

#[test]
fn calls_that_wait_go_on_when_the_algorithm_changes() {
    let (server, mut client) = Server::start().and_client();
    let pairs = changes(5, "500ms", "500ms");
    assert_eq!(pairs.len(), 26);
    let key = |words: &str, pair: usize| words.replace('#', &pair.to_string());
    let mut lines = Vec::new();
    for (pair, (old, new)) in pairs.iter().enumerate() {
        set_policy(&mut client, &key(&format!("policy:# {old}"), pair));
        assert_eq!(limit(&mut client, &key("RL.USE key:# 1 policy:# COST 5 ID taken", pair))[0], 5);
        // All that happens on the key before a waiting call is answered happens within a pause, so that none is answered earlier.
        call::<i64>(&mut client, &key("RL.PAUSE key:# 1h", pair));
        let wait = |id| Held::send(&server, &key(&format!("RL.USE key:# 1 policy:# COST 2 BLOCK 1d ID id:{id}"), pair));
        let mut waiting: Vec<_> = (0..3).map(wait).collect();
        wait_for("the calls to wait", || held(&mut client) == 4 * pair as i64 + 3);
        set_policy(&mut client, &key(&format!("policy:# {new}"), pair));
        // A call that takes units stands behind those that wait, and the pause stays.
        let denied = limit(&mut client, &key("RL.USE key:# 1 policy:#", pair));
        assert!(denied[0] == 0 && denied[3] > 3_000_000, "{old} -> {new}: {denied:?}");
        // The new algorithm writes its own record, which the waiting calls then carry over in their turn.
        assert_eq!(limit(&mut client, &key("RL.USE key:# 1 policy:# FORCE 1", pair))[0], 1, "{old} -> {new}");
        assert!(inspect(&mut client, &key("key:#", pair), "paused_ms").is_some_and(|ms| ms > 3_000_000), "{old} -> {new}");
        // The ids of the other record are forgotten, which is no error.
        assert_eq!(settle(&mut client, &key("RL.SETTLE key:# taken 1", pair)), None, "{old} -> {new}");
        waiting.push(Held::send(&server, &key("RL.USE key:# 1 policy:# COST 2 BLOCK 1d", pair)));
        wait_for("the last to wait", || held(&mut client) == 4 * pair as i64 + 4);
        lines.push(waiting);
    }
    for pair in 0..pairs.len() {
        assert_eq!(call::<i64>(&mut client, &key("RL.PAUSE key:# 0", pair)), 0);
    }
    for (line, (old, new)) in lines.iter_mut().zip(&pairs) {
        let rows: Vec<_> = line.iter_mut().map(|held| held.reply()).collect();
        // Two calls can be answered at one moment.
        assert!(rows.windows(2).all(|pair| pair[0].at_us() < pair[1].at_us() + 1_000), "{old} -> {new}: {rows:?}");
        assert!(rows.iter().all(|reply| reply.row.as_ref().is_ok_and(|row| row[0] == 2)), "{old} -> {new}: {rows:?}");
    }
    assert_eq!(held(&mut client), 0);
}

#[test]
fn every_algorithm_goes_on_from_what_every_other_has_charged() {
    let server = Clocked::frozen(&[]);
    let mut client = server.client();
    for (old, new) in changes(10, "1d", "10s") {
        let what = format!("{old} -> {new}");
        call::<()>(&mut client, "FLUSHALL");
        set_policy(&mut client, &format!("policy {old}"));
        assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 4 ID a")[0], 4, "{what}");
        assert_eq!(limit(&mut client, "RL.USE key 1 policy COST 6 ID b")[..3], [6, 10, 0], "{what}");
        let before = snapshot(&mut client, "key");
        set_policy(&mut client, &format!("policy {new}"));
        // Usage is carried over. The wait is one of the new rate, and it is kept. Denials write nothing, so the ids are still there.
        let denied = limit(&mut client, "RL.USE key 1 policy COST 10");
        assert_eq!(denied[..3], [0, 10, 0], "{what}: {denied:?}");
        let one = limit(&mut client, "RL.USE key 1 policy");
        assert!(one[..3] == [0, 10, 0] && one[3] > 0, "{what}: {one:?}");
        assert_eq!(snapshot(&mut client, "key"), before, "{what}");
        assert_eq!(limit(&mut client, "RL.USE key 1 policy ID a")[0], 0, "{what}: the id is of the other algorithm");
        // The units of a log count at least until their tick has passed.
        let tick = if old.ends_with("SEGMENTS 10") { 8_640_000 } else { 0 };
        assert!(one[3] <= denied[3] && denied[3] <= tick + 11_400, "{what}: {denied:?}");
        call::<i64>(&mut client, "COPY key copy");
        server.pass(1_000 * one[3]);
        assert_eq!(limit(&mut client, "RL.USE key 1 policy")[0], 1, "{what}");
        server.pass(1_000 * (denied[3] - one[3]));
        assert_eq!(limit(&mut client, "RL.USE copy 1 policy COST 10")[..3], [10, 10, 0], "{what}");
        assert_eq!(limit(&mut client, "RL.USE copy 1 policy")[0], 0, "{what}");
        assert_eq!(settle(&mut client, "RL.SETTLE copy a 0"), None, "{what}");
        // The command that names its algorithm does not carry over.
        let error = refused(&mut client, &format!("RL.{}", old.replacen(' ', " copy ", 1)));
        assert!(error.starts_with("WRONGTYPE key holds a "), "{what}: {error}");
    }
}

/// Leases and rates do not turn into each other, also not under SHADOW.
#[test]
fn a_lease_never_becomes_a_rate_nor_a_rate_a_lease() {
    let (_server, mut client) = Server::start().and_client();
    for rate in rates(10, "1h") {
        let kind = rate.split(' ').next().expect("a word").to_string();
        for shadow in ["", " SHADOW"] {
            call::<()>(&mut client, "FLUSHALL");
            set_policy(&mut client, &format!("lease LEASE 5 1h{shadow}"));
            set_policy(&mut client, &format!("rate {rate}{shadow}"));
            limit(&mut client, "RL.USE rated 1 rate");
            limit(&mut client, "RL.USE leased 1 lease ID a");
            let before = (snapshots_of(&mut client, &["rated", "leased"]), traces(&mut client));
            for words in
                ["RL.USE rated 1 lease ID a", "RL.USE rated 1 lease ID a BLOCK 1", "RL.USE rated 1 lease ID a RENEW"]
            {
                let expected = format!("WRONGTYPE key holds a {kind} limiter, not a LEASE limiter");
                assert_eq!(refused(&mut client, words), expected, "{words}");
            }
            for words in ["RL.USE leased 1 rate", "RL.USE leased 1 rate BLOCK 1", "RL.USE leased 1 rate FORCE 1"] {
                let expected = format!("WRONGTYPE key holds a LEASE limiter, not a {kind} limiter");
                assert_eq!(refused(&mut client, words), expected, "{words}");
            }
            assert_eq!((snapshots_of(&mut client, &["rated", "leased"]), traces(&mut client)), before);
        }
    }
}

#[test]
fn a_policy_that_changes_its_algorithm_under_load_is_no_error() {
    let (server, mut client) = Server::on_port(&[]).and_client();
    let replica = server.replica(&[]);
    set_policy(&mut client, "policy GCRA 1000 1s");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|caller| {
                let (mut client, done) = (server.client(), &done);
                scope.spawn(move || {
                    let mut granted = [0_i64; 2];
                    for number in 0_u64.. {
                        if done.load(std::sync::atomic::Ordering::Relaxed) {
                            break;
                        }
                        let key = number as usize % 2;
                        let words = match number % 5 {
                            0 => format!(" COST 2 ID id:{caller}:{number}"),
                            // The last call with an id was on the other key or on this one. It can be forgotten.
                            4 => {
                                settle(
                                    &mut client,
                                    &format!("RL.SETTLE key:{key} id:{caller}:{} 1", number / 10 * 10 + 5 * key as u64),
                                );
                                String::new()
                            }
                            1 => " UPTO 3".into(),
                            2 => " BLOCK 1".into(),
                            _ => String::new(),
                        };
                        granted[key] += limit(&mut client, &format!("RL.USE key:{key} 1 policy{words}"))[0];
                    }
                    granted
                })
            })
            .collect();
        let from = support::time_us(&mut client);
        // Each algorithm comes after each other one in a round of twelve. The capacity stays, so that no change frees units.
        const ROUND: [&str; 12] =
            ["FIXED", "SLIDE", "FIXED", "GCRA", "FIXED", "BUCKET", "SLIDE", "GCRA", "SLIDE", "BUCKET", "GCRA", "BUCKET"];
        for round in 0..240 {
            let (kind, period) = (ROUND[round % 12], ["1s", "1100ms"][round / 12 % 2]);
            set_policy(&mut client, &format!("policy {kind} 1000 {period}"));
            if round % 20 == 7 {
                call::<i64>(&mut client, "RL.PAUSE key:1 20ms");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let granted = callers.into_iter().map(|caller| caller.join().expect("no error")).collect::<Vec<_>>();
        let us = support::time_us(&mut client) - from;
        for key in 0..2 {
            let granted: i64 = granted.iter().map(|granted| granted[key]).sum();
            // FIXED alone may grant its limit twice at once, beside its rate.
            assert!((1..=us / 1_000 + 1 + 2_000).contains(&granted), "{granted} in {us} us");
        }
    });
    assert_eq!(held(&mut client), 0);
    // A replica has the same keys, which the algorithms have written in turn, and the policy. The pauses keep these keys while
    // they are compared.
    for key in 0..2 {
        call::<i64>(&mut client, &format!("RL.PAUSE key:{key} 1h"));
    }
    server.wait_until_in_step(&replica);
    let copies = snapshots(&mut replica.client());
    assert!(copies.contains_key("policy") && copies.contains_key("key:0"));
    assert_same(&copies, &snapshots(&mut client));
}
