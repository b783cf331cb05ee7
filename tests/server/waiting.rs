//! `BLOCK` in special states of the server: it refuses writes, it does not block this client, or its clock steps. What becomes of
//! clients that wait when their connection or their primary is lost.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{Connection, Value};
use support::{
    assert_same, call, command, crowd_while, error, free_port, held, info, inspect, limit, replies, server_program,
    snapshot, snapshots, time_us, wait_for, AllRows, Clocked, Held, Reply, Resp, Server,
};

use super::all::ends::Waiting;

/// Waits until the server's clock has advanced by so many milliseconds.
fn let_pass(client: &mut Connection, ms: i64) {
    let from = time_us(client);
    wait_for("time to pass", || time_us(client) >= from + ms * 1_000);
}

// ---- When the server refuses writes ----

/// `refuse` makes the server refuse writes with the error `code`, and `allow` ends that. A client that is due meanwhile goes
/// on waiting and is granted afterwards. A client whose timeout is over meanwhile is denied. So it is with one key and with three.
fn no_waiter_is_granted_while(
    server: &Server,
    code: &str,
    refuse: impl FnOnce(&mut Connection),
    allow: impl FnOnce(&mut Connection),
) {
    let mut client = server.client();
    call::<()>(&mut client, "DEL key");
    assert_eq!(limit(&mut client, "RL.GCRA key 1 300ms")[0], 1);
    let patient = Held::send(server, "RL.GCRA key 1 300ms BLOCK 1000");
    let impatient = Held::send(server, "RL.GCRA key 1 300ms BLOCK 700ms");
    let mut several = Waiting::send(server, &mut client);
    refuse(&mut client);
    let direct = error(&mut client, &command("RL.GCRA other 1 300ms"));
    assert!(direct.starts_with(code), "{direct}");
    // Both were due long ago, but only one of them has reached its timeout.
    let_pass(&mut client, 1_500);
    assert_eq!(held(&mut client), 2, "{code}");
    assert_eq!(impatient.row()[0], 0, "{code}");
    several.only_one_waits(&mut client, code);
    let direct = error(&mut client, &command("RL.GCRA other 1 300ms"));
    assert!(direct.starts_with(code), "{direct}");
    allow(&mut client);
    assert_eq!(patient.row()[0], 1, "{code}");
    several.one_is_granted(&mut client, code);
}

#[test]
fn no_waiter_is_granted_while_replicas_are_missing() {
    let server = Server::on_port(&[]);
    for _ in 0..2 {
        no_waiter_is_granted_while(
            &server,
            "NOREPLICAS",
            |client| call(client, "CONFIG SET min-replicas-to-write 1"),
            |client| call(client, "CONFIG SET min-replicas-to-write 0"),
        );
    }
    // One replica that connects is enough.
    let mut replica = None;
    no_waiter_is_granted_while(
        &server,
        "NOREPLICAS",
        |client| call(client, "CONFIG SET min-replicas-to-write 1"),
        |_| replica = Some(Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", server.port)])),
    );
}

#[test]
fn no_waiter_is_granted_while_memory_is_full() {
    let server = Server::start();
    no_waiter_is_granted_while(
        &server,
        "OOM",
        |client| call(client, "CONFIG SET maxmemory 1"),
        |client| call(client, "CONFIG SET maxmemory 0"),
    );
    // Here the server evicts this key, but not the other one, which has no deadline. Then it has nothing left to evict.
    call::<()>(&mut server.client(), "CONFIG SET maxmemory-policy volatile-ttl");
    call::<()>(&mut server.client(), "SET kept 1");
    no_waiter_is_granted_while(
        &server,
        "OOM",
        |client| call(client, "CONFIG SET maxmemory 1"),
        |client| call(client, "CONFIG SET maxmemory 0"),
    );
}

#[test]
fn eviction_lets_waiters_go_on() {
    for policy in ["allkeys-random", "volatile-ttl", "volatile-lru"] {
        let (server, mut client) = Server::with(&["--maxmemory-policy", policy]).and_client();
        for key in 0..5_000 {
            call::<()>(&mut client, &format!("SET fill:{key} {key} EX 10000"));
        }
        assert_eq!(limit(&mut client, "RL.GCRA key 1 300ms")[0], 1);
        let waiting = Held::send(&server, "RL.GCRA key 1 300ms BLOCK 1000");
        // Just too little memory: one key fewer would do, and the server evicts one for the next command that needs memory.
        let used = info(&mut client, "memory", "used_memory");
        call::<()>(&mut client, &format!("CONFIG SET maxmemory {}", used - 10_000));
        assert_eq!(waiting.row()[0], 1, "{policy}");
    }
}

#[test]
fn no_waiter_is_granted_while_snapshots_fail() {
    let server = Server::with(&[]);
    let folder = server.dir().join("dump.rdb");
    redis::cmd("CONFIG").arg(&["SET", "save", "36000 1000000"]).exec(&mut server.client()).expect("a save point");
    let save = |client: &mut Connection, status: &str| {
        call::<()>(client, "BGSAVE");
        wait_for("the snapshot", || {
            let text: String = call(client, "INFO persistence");
            text.contains("rdb_bgsave_in_progress:0") && text.contains(&format!("rdb_last_bgsave_status:{status}"))
        });
    };
    no_waiter_is_granted_while(
        &server,
        "MISCONF",
        |client| {
            // A folder with this name can't be replaced by a file.
            std::fs::create_dir_all(folder.join("full")).expect("a folder");
            save(client, "err");
        },
        |client| {
            std::fs::remove_dir_all(&folder).expect("no folder");
            save(client, "ok");
        },
    );
    // An operator may configure the server to go on.
    call::<()>(&mut server.client(), "CONFIG SET stop-writes-on-bgsave-error no");
    std::fs::remove_file(&folder).expect("no file");
    std::fs::create_dir_all(folder.join("full")).expect("a folder");
    save(&mut server.client(), "err");
    let mut client = server.client();
    assert_eq!(limit(&mut client, "RL.GCRA careless 1 300ms")[0], 1);
    assert_eq!(Held::send(&server, "RL.GCRA careless 1 300ms BLOCK 1000").row()[0], 1);
}

#[test]
fn a_renamed_config_command_is_no_obstacle() {
    let (server, mut client) = Server::with(&["--rename-command", "CONFIG", ""]).and_client();
    assert_eq!(limit(&mut client, "RL.GCRA key 1 100ms")[0], 1);
    assert_eq!(Held::send(&server, "RL.GCRA key 1 100ms BLOCK 1000").row()[0], 1);
}

// ---- When the server does not block a client ----

/// A client of the test's own that speaks RESP3, and sees each line that the server sends.
pub(crate) struct Raw(BufReader<UnixStream>);

impl Raw {
    pub(crate) fn connect(server: &Server) -> Self {
        let socket = UnixStream::connect(server.socket()).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
        Self(BufReader::new(socket))
    }

    /// A client that has subscribed to `channel`.
    pub(crate) fn subscribed(server: &Server) -> Self {
        let mut raw = Self::connect(server);
        ["HELLO 3", "SUBSCRIBE channel", "PING"].into_iter().for_each(|words| raw.send(words));
        raw.up_to("+PONG");
        raw
    }

    pub(crate) fn send(&mut self, words: &str) {
        self.0.get_mut().write_all(format!("{words}\r\n").as_bytes()).expect("a connection");
    }

    /// Reads lines up to the first that is this one.
    pub(crate) fn up_to(&mut self, last: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != last) {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("a line") > 0, "the end after {lines:?}");
            lines.push(line.trim_end().into());
        }
        lines
    }
}

#[test]
fn a_client_with_a_subscription_gets_one_reply_to_each_call() {
    let (server, mut client) = Server::start().and_client();
    let mut raw = Raw::subscribed(&server);
    // The call, where its reply says whether it is granted and how long to wait, and how many lines a reply has.
    let one = ["RL.GCRA key 1 300ms", "RL.SLIDE log 1 300ms", "RL.FIXED window 1 300ms"].map(|words| (words, "*5", 4, 6));
    let all = ["a", "b", "c"].map(|key| format!("RL.ALL 2 one:{key} slots:{key} FIXED 1 300ms LEASE 5 1h"));
    for (words, head, wait, length) in one.into_iter().chain(all.iter().map(|words| (&**words, "*3", 2, 16))) {
        raw.send(&format!("{words} ID a"));
        raw.send(&format!("{words} ID b BLOCK 100"));
        raw.send("PING");
        let lines = raw.up_to("+PONG");
        let rows: Vec<_> = (0..lines.len()).filter(|&line| lines[line] == head).collect();
        assert_eq!((rows.len(), lines.len()), (2, 2 * length + 1), "{words}: {lines:?}");
        assert_eq!(lines[rows[0] + 1], ":1", "{words}");
        // The call is granted after a wait; or, if the server does not block this client, it is denied like a call without
        // BLOCK, and charges no key.
        let (granted, wait) = (&lines[rows[1] + 1], &lines[rows[1] + wait]);
        assert!(granted == ":1" && wait == ":0" || granted == ":0" && wait != ":0", "{words}: {lines:?}");
        if let Some(slots) = words.split(' ').find(|word| word.starts_with("slots")) {
            let left = limit(&mut client, &format!("RL.PEEK LEASE {slots} 5 1h"))[2];
            assert_eq!(left, if granted == ":1" { 3 } else { 4 }, "{words}");
        }
    }
    wait_for("no waiter", || held(&mut client) == 0);
    // Published messages come between the replies, and replace none.
    call::<i64>(&mut client, "PUBLISH channel hello");
    for words in ["RL.GCRA other 1 1d", "RL.ALL 1 another GCRA 1 1d BLOCK 1"] {
        raw.send(words);
    }
    raw.send("PING");
    let lines = raw.up_to("+PONG");
    assert!(lines.contains(&"hello".into()) && lines.iter().filter(|line| *line == "*5").count() == 2, "{lines:?}");
}

// ---- The node of a key ----

#[test]
fn a_node_finds_out_that_it_serves_a_key_without_reading_it() {
    // The second node has no `EXISTS`, with which Redis 7.0 finds it out.
    for renamed in [&[][..], &["--rename-command", "EXISTS", ""]] {
        let bus = free_port().to_string();
        let node = Server::on_port(&[&["--cluster-enabled", "yes", "--cluster-port", &bus][..], renamed].concat());
        let mut client = node.client();
        call::<()>(&mut client, "CLUSTER ADDSLOTSRANGE 0 16383");
        wait_for("the cluster", || call::<String>(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
        for (keys, words) in
            [("{k}a", "RL.GCRA {k}a 1 1d"), ("{k}a {k}b {k}c", "RL.ALL 3 {k}a {k}b {k}c GCRA 1 1d GCRA 1 1d GCRA 1 1d")]
        {
            call::<()>(&mut client, words);
            let mut waiting = Held::send(&node, &format!("{words} BLOCK 1d"));
            call::<()>(&mut client, &format!("DEL {keys}"));
            waiting.answer::<Value>().row.expect("a grant");
            call::<()>(&mut client, &format!("DEL {keys}"));
        }
        let stats: String = call(&mut client, "INFO commandstats");
        let calls =
            |name: &str| stats.lines().find_map(|line| line.strip_prefix(name)?.split(['=', ',']).nth(1)?.parse().ok());
        let (own, exists): (Option<u64>, Option<u64>) = (calls("cmdstat_rl.inspect:"), calls("cmdstat_exists:"));
        // Redis 7.0 asks once for each of the four keys, and the others execute no command.
        let asked = own.or(exists);
        assert!(asked.is_none_or(|asked| asked == 4) && (own.is_none() || !renamed.is_empty()), "{renamed:?}: {stats}");
    }
}

#[test]
fn nobody_is_granted_while_the_cluster_is_down_even_if_the_node_serves_reads() {
    let bus = free_port().to_string();
    let node =
        Server::on_port(&["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-allow-reads-when-down", "yes"]);
    let mut client = node.client();
    call::<()>(&mut client, "CLUSTER ADDSLOTSRANGE 0 16383");
    let state = |client: &mut Connection, state: &str| {
        wait_for(state, || call::<String>(client, "CLUSTER INFO").contains(&format!("cluster_state:{state}")));
    };
    state(&mut client, "ok");
    limit(&mut client, "RL.GCRA key 1 5");
    let mut waiting = Held::send(&node, "RL.GCRA key 1 5 BLOCK 1d");
    let slot: i64 = call(&mut client, "CLUSTER KEYSLOT key");
    call::<()>(&mut client, &format!("CLUSTER DELSLOTS {}", (slot + 1) % 16_384));
    state(&mut client, "fail");
    assert!(error(&mut client, &command("RL.GCRA key 1 5")).starts_with("CLUSTERDOWN "));
    let refused = waiting.answer::<Value>().row.expect_err("no grant");
    assert!(refused.starts_with("TRYAGAIN ") || refused.starts_with("CLUSTERDOWN "), "{refused}");
    assert_eq!(info(&mut client, "rl", "rl_gcra_granted"), 1);
}

// ---- Statistics ----

#[test]
fn each_wait_ends_in_one_count() {
    let (server, mut client) = Server::start().and_client();
    let counts = |client: &mut Connection| {
        ["waiting_clients", "waits", "wait_timeouts", "waits_abandoned", "gcra_granted"]
            .map(|field| info(client, "rl", &format!("rl_{field}")))
    };
    let inspected = |client: &mut Connection| inspect(client, "key", "waiting").expect("a key");
    limit(&mut client, "RL.GCRA key 1 1d");
    assert_eq!(inspected(&mut client), 0);
    let mut waiting: Vec<_> = (0..6).map(|_| Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d")).collect();
    let other = Held::send(&server, "RL.GCRA elsewhere 1 1d COST 1 BLOCK 1d");
    assert_eq!(other.row()[0], 1);
    assert_eq!(inspected(&mut client), 6);
    assert_eq!(counts(&mut client), [6, 6, 0, 0, 2]);
    // One client is killed, one disconnects, one is unblocked with an error, one is unblocked as if its timeout was over,
    // and one is granted.
    call::<i64>(&mut client, &format!("CLIENT KILL ID {}", waiting[0].id));
    drop(waiting.remove(1));
    call::<i64>(&mut client, &format!("CLIENT UNBLOCK {} ERROR", waiting[1].id));
    call::<i64>(&mut client, &format!("CLIENT UNBLOCK {} TIMEOUT", waiting[2].id));
    wait_for("them to be gone", || held(&mut client) == 2);
    assert_eq!(counts(&mut client), [2, 6, 1, 3, 2]);
    call::<()>(&mut client, "DEL key");
    wait_for("a grant", || held(&mut client) == 1);
    assert_eq!(counts(&mut client), [1, 6, 1, 3, 3]);
    // One client gets the error that the key is no limiter any more.
    call::<()>(&mut client, "RPUSH list 1");
    call::<()>(&mut client, "RENAME list key");
    wait_for("the last", || held(&mut client) == 0);
    assert_eq!(counts(&mut client), [0, 6, 1, 4, 3]);
    // One client is unblocked, and gets this error, since SET does not wake the line.
    limit(&mut client, "RL.GCRA other 1 1d");
    let unblocked = Held::send(&server, "RL.GCRA other 1 1d BLOCK 1d");
    call::<()>(&mut client, "SET other text");
    call::<i64>(&mut client, &format!("CLIENT UNBLOCK {}", unblocked.id));
    assert!(replies([unblocked]).remove(0).row.expect_err("no limiter").starts_with("WRONGTYPE "));
    assert_eq!(counts(&mut client), [0, 7, 1, 5, 4]);
}

// ---- When the clock steps ----

#[test]
fn steps_of_the_wall_clock_do_not_change_the_length_of_a_wait() {
    let server = &Clocked::start();
    let mut client = server.client();
    let before = time_us(&mut client);
    server.step(3_600 * 1_000_000);
    wait_for("the server's clock to step", || time_us(&mut client) >= before + 3_600_000_000);
    server.step(0);
    for step in [-7_200, 7_200] {
        call::<()>(&mut client, "FLUSHALL");
        // The first client waits for five units, which take 20 hours. Each of the others waits for one unit, and would get
        // it if it were first.
        limit(&mut client, "RL.BUCKET line 10 40h COST 5");
        let first = Held::send(server, "RL.BUCKET line 10 40h COST 10 BLOCK 1d");
        let begun = Instant::now();
        let others = [1_500, 1_000].map(|ms| (ms, Held::send(server, &format!("RL.BUCKET line 10 40h BLOCK {ms}ms"))));
        server.step(step * 1_000_000);
        let threads = others.map(|(ms, mut held)| (ms, std::thread::spawn(move || held.reply())));
        for (ms, thread) in threads {
            let reply = thread.join().expect("a reply");
            assert_eq!(reply.row.expect("a denial")[0], 0, "{step}");
            assert!(begun.elapsed() >= Duration::from_millis(ms), "{step}: {ms} ms ended early");
        }
        assert_eq!(held(&mut client), 1);
        // Other clients come while the clock is wrong, and the first is still the first in the queue.
        assert_eq!(limit(&mut client, "RL.GCRA fresh 1 300ms")[0], 1);
        assert_eq!(Held::send(server, "RL.GCRA fresh 1 300ms BLOCK 1000").row()[0], 1, "{step}");
        call::<()>(&mut client, "DEL line");
        assert_eq!(first.row()[0], 10, "{step}");
        server.step(0);
    }
}

// ---- How many may wait ----

#[test]
fn no_more_calls_wait_than_the_setting_allows() {
    let (server, mut client) = Server::with(&["--rl.max-waiters", "2"]).and_client();
    let refused = |client: &mut Connection, words: &str| {
        let before = snapshots(client);
        assert_eq!(error(client, &command(words)), "ERR too many waiting calls", "{words}");
        assert_same(&before, &snapshots(client));
    };
    for words in ["RL.GCRA full 1 1d", "RL.SLIDE log 1 12h", "RL.LEASE leases 1 1d ID a"] {
        assert_eq!(limit(&mut client, words)[0], 1);
    }
    let mut first = Held::send(&server, "RL.GCRA full 1 1d BLOCK 1d");
    let mut second = Held::send(&server, "RL.ALL 2 full free GCRA 1 1d FIXED 5 1d BLOCK 1d");
    let would_wait = [
        "RL.GCRA full 1 1d BLOCK 1d",
        "RL.SLIDE log 1 12h UPTO 3 BLOCK 1d",
        "RL.LEASE leases 1 1d ID b BLOCK 1",
        "RL.ALL 2 free log FIXED 5 1d SLIDE 1 12h BLOCK 1d",
    ];
    would_wait.iter().for_each(|words| refused(&mut client, words));
    // These are decided at once, as without the setting.
    for (words, granted) in [
        ("RL.GCRA fresh 1 1d BLOCK 1d", 1),
        ("RL.GCRA fresh 1 1d COST 2 BLOCK 1d", 0),
        ("RL.SLIDE log 1 12h BLOCK 1", 0),
        ("RL.SLIDE log 1 12h", 0),
        ("RL.LEASE leases 1 1d ID a BLOCK 1", 1),
    ] {
        assert_eq!(limit(&mut client, words)[0], granted, "{words}");
    }
    assert_eq!(["waiting_clients", "waits"].map(|field| info(&mut client, "rl", &format!("rl_{field}"))), [2, 2]);
    // A lower value ends no wait, and 0 allows any number.
    call::<()>(&mut client, "CONFIG SET rl.max-waiters 1");
    assert_eq!(held(&mut client), 2);
    refused(&mut client, would_wait[0]);
    call::<()>(&mut client, "CONFIG SET rl.max-waiters 0");
    drop(Held::send(&server, would_wait[1]));
    // There is room again when fewer wait.
    call::<()>(&mut client, "CONFIG SET rl.max-waiters 1");
    call::<()>(&mut client, "DEL full");
    assert_eq!(first.reply().granted(), 1);
    refused(&mut client, would_wait[2]);
    call::<()>(&mut client, "DEL full");
    assert_eq!(second.answer::<AllRows>().row.expect("a grant").0, 1);
    wait_for("the clients to be gone", || held(&mut client) == 0);
    let _third = Held::send(&server, would_wait[0]);
    assert_eq!(held(&mut client), 1);
}

// ---- A client that does not read ----

#[test]
fn a_client_that_does_not_read_takes_its_grants_and_delays_nobody() {
    let (server, mut client) = Server::start().and_client();
    call::<()>(&mut client, &format!("SET large {}", "x".repeat(4_000_000)));
    // What the client has sent before its call, and how many calls it sends. It reads no reply.
    for (before, calls) in [("PING", 1), ("GET large", 1), ("PING", 3)] {
        call::<()>(&mut client, "DEL key");
        let granted = info(&mut client, "rl", "rl_gcra_granted");
        assert_eq!(limit(&mut client, "RL.GCRA key 1 100ms")[0], 1);
        let mut silent = UnixStream::connect(server.socket()).expect("a connection");
        let words = format!("{before}\r\n{}", "RL.GCRA key 1 100ms BLOCK 1h\r\n".repeat(calls));
        silent.write_all(words.as_bytes()).expect("a connection");
        wait_for("it to wait", || held(&mut client) == 1);
        let others: Vec<_> = (0..3).map(|_| Held::send(&server, "RL.GCRA key 1 100ms BLOCK 1h")).collect();
        let rows: Vec<_> = replies(others).iter().map(Reply::granted).collect();
        assert_eq!(rows, [1; 3], "{before}");
        // Each of its calls is charged. The next one joins the line when the one before is answered.
        wait_for("its calls to be granted", || held(&mut client) == 0);
        assert_eq!(info(&mut client, "rl", "rl_gcra_granted") - granted, 1 + 3 + calls as i64, "{before}");
        // The replies are there for a client that reads later.
        let mut reader = BufReader::new(silent).lines();
        let rows = (0..calls).map(|_| {
            reader.find(|line| line.as_ref().expect("a line") == "*5");
            reader.next().expect("a line").expect("a line")
        });
        assert_eq!(rows.collect::<Vec<_>>(), vec![":1"; calls], "{before}");
    }
}

#[test]
fn the_setting_timeout_ends_no_wait() {
    let (server, mut client) = Server::with(&["--timeout", "1"]).and_client();
    assert_eq!(limit(&mut client, "RL.GCRA key 1 3")[0], 1);
    let reply = Held::send(&server, "RL.GCRA key 1 3 BLOCK 1h").reply();
    assert!(reply.at_us() - reply.sent_us > 2_000_000 && reply.granted() == 1, "{reply:?}");
}

// ---- A replica that must not serve stale state ----

#[test]
fn a_replica_that_serves_no_stale_state_refuses_reads_and_ends_waits() {
    let (server, mut client) = Server::on_port(&["--replica-serve-stale-data", "no"]).and_client();
    let calls = ["RL.PEEK GCRA key 1 1d", "RL.INSPECT key", "RL.GCRA key 1 1d", "RL.GCRA key 1 1d BLOCK 1d"];
    assert_eq!(limit(&mut client, "RL.GCRA key 1 1d")[0], 1);
    let before = snapshots(&mut client);
    let one = Held::send(&server, "RL.GCRA key 1 1d BLOCK 1d");
    let all = Held::send(&server, "RL.ALL 2 free key GCRA 1 1d GCRA 1 1d BLOCK 1d");
    // It becomes a replica of a primary that it cannot reach.
    call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    for reply in replies([one, all]) {
        let error = reply.row.expect_err("no grant by a replica");
        assert!(error.starts_with("UNBLOCKED "), "{error}");
    }
    for (words, code) in calls.iter().zip(["MASTERDOWN", "MASTERDOWN", "READONLY", "READONLY"]) {
        let error = error(&mut client, &command(words));
        assert!(error.starts_with(code), "{words}: {error}");
    }
    call::<()>(&mut client, "REPLICAOF NO ONE");
    assert_same(&before, &snapshots(&mut client));
    // A replica that loses its primary: what it had is readable only with the default of the setting.
    for (stale, code) in [("no", Some("MASTERDOWN")), ("yes", None)] {
        let mut primary = Server::on_port(&[]);
        assert_eq!(limit(&mut primary.client(), "RL.GCRA key 1 1d")[0], 1);
        call::<()>(&mut client, &format!("CONFIG SET replica-serve-stale-data {stale}"));
        call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", primary.port));
        let link = |client: &mut Connection, state: &str| {
            wait_for(state, || call::<String>(client, "INFO replication").contains(&format!("master_link_status:{state}")));
        };
        link(&mut client, "up");
        assert_eq!(limit(&mut client, calls[0])[..3], [0, 1, 0]);
        primary.crash();
        link(&mut client, "down");
        match code {
            Some(code) => calls[..2].iter().for_each(|words| assert!(error(&mut client, &command(words)).starts_with(code))),
            None => assert_eq!(limit(&mut client, calls[0])[..3], [0, 1, 0]),
        }
    }
}

/// The server itself ends most waits, but Valkey 9.1 leaves those of clients that follow redirects to the module.
#[test]
fn a_server_that_becomes_a_replica_ends_the_waits_of_clients_that_follow_redirects() {
    let (server, mut client) = Server::on_port(&[]).and_client();
    for words in ["RL.GCRA key 1 100", "RL.LEASE lease 1 1d ID held"] {
        assert_eq!(limit(&mut client, words)[0], 1);
    }
    let calls =
        ["RL.GCRA key 1 100", "RL.GCRA key 1 100", "RL.LEASE lease 1 1d ID next", "RL.ALL 2 key free GCRA 1 100 GCRA 1 1d"];
    let wait = |words: &&str| {
        let mut waiting = Held::prepare(&server, Resp::Two);
        // Servers that do not redirect clients outside a cluster refuse this.
        let _ = command("CLIENT CAPA redirect").query::<()>(waiting.connection());
        waiting.call(&mut server.client(), &format!("{words} BLOCK 110"))
    };
    let waiting: Vec<_> = calls.iter().map(wait).collect();
    let before = snapshots(&mut client);
    call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {}", free_port()));
    for reply in replies(waiting) {
        let error = reply.row.expect_err("no wait on a replica");
        assert!(error.starts_with("UNBLOCKED "), "{error}");
    }
    call::<()>(&mut client, "REPLICAOF NO ONE");
    assert_same(&before, &snapshots(&mut client));
}

// ---- Sentinel ----

/// Starts a sentinel that watches the server `primary`, in a private folder.
fn sentinel(primary: u16) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, program] = ["sentinel.conf", "start-sentinel"].map(|name| folder.path().join(name));
    let watch = format!("sentinel monitor main 127.0.0.1 {primary} 1\nsentinel down-after-milliseconds main 600000\n");
    let watch = format!("{watch}sentinel failover-timeout main 5000\n");
    std::fs::write(&file, format!("{watch}unixsocket server.sock\nbind 127.0.0.1\n")).expect("a file");
    // Of the options that a server gets, a sentinel takes only the port.
    let script = format!("#!/bin/sh\nexec '{}' '{}' --sentinel --port \"$4\"\n", server_program(), file.display());
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("a program");
    let server = Server::of(&program.display().to_string(), false, &[]);
    (folder, server)
}

/// Whether the server has this role, and its link is up if it is a replica. A sentinel that changes a server's role closes the
/// connections to it.
fn is(server: &Server, role: &str) -> bool {
    let ask = |mut client: Connection| command("INFO replication").query::<String>(&mut client);
    let text = server.try_client(Resp::Two).and_then(ask).unwrap_or_default();
    text.contains(&format!("role:{role}")) && (role == "master" || text.contains("master_link_status:up"))
}

#[test]
fn failovers_by_sentinel_end_waits_and_charge_none() {
    let first = Server::on_port(&[]);
    let mut second = Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", first.port)]);
    let (_folder, sentinel) = sentinel(first.port);
    let mut asks = sentinel.client();
    let state = |server: &Server| ["key", "log"].map(|key| snapshot(&mut server.client(), key));
    let words = ["RL.GCRA key 8 12h", "RL.SLIDE log 8 12h"];
    let wait_on =
        |server: &Server| (0..8).map(|index| Held::send(server, &format!("{} BLOCK 1d", words[index % 2]))).collect();
    let assert_ended = |waiting: Vec<Held>| {
        for reply in replies(waiting) {
            // The sentinel closes the connections at the moment at which the server becomes a replica.
            let error = reply.row.expect_err("no grant by a server that is no primary any more");
            assert!(error.starts_with("UNBLOCKED ") || reply.at_us.is_none(), "{error}");
        }
    };
    words.iter().for_each(|words| assert_eq!(limit(&mut first.client(), &format!("{words} COST 8"))[0], 8));
    let before = state(&first);
    let waiting = wait_on(&first);
    wait_for("the replica", || is(&second, "slave") && state(&second) == before);
    // The sentinel refuses this until it knows the replica.
    wait_for("the failover", || command("SENTINEL FAILOVER main").query::<()>(&mut asks).is_ok());
    assert_ended(waiting);
    wait_for("the new parts", || is(&second, "master") && is(&first, "slave"));
    assert_eq!(state(&second), before, "nothing was charged");
    // The clients call the new primary, and each of them is granted once.
    let waiting = wait_on(&second);
    call::<()>(&mut second.client(), "DEL key log");
    assert_eq!(replies(waiting).iter().map(Reply::granted).sum::<i64>(), 8);
    let peeks = ["RL.PEEK GCRA key 8 12h COST 5", "RL.PEEK SLIDE log 8 12h COST 5"];
    peeks.iter().for_each(|words| assert_eq!(limit(&mut second.client(), words)[..3], [0, 8, 4], "{words}"));
    // Now the primary is killed while they wait for more than is left.
    let waiting: Vec<_> = words.iter().map(|words| Held::send(&second, &format!("{words} COST 8 BLOCK 1d"))).collect();
    let before = state(&second);
    wait_for("the replica", || state(&first) == before);
    second.crash();
    assert_ended(waiting);
    // Until now, a server that is slow on a busy machine does not count as down.
    call::<()>(&mut asks, "SENTINEL SET main down-after-milliseconds 500");
    wait_for("the next failover", || is(&first, "master"));
    assert_eq!(state(&first), before, "nothing was charged");
    peeks.iter().for_each(|words| assert_eq!(limit(&mut first.client(), words)[..3], [0, 8, 4], "{words}"));
}

/// docs/operations.md names this command for Valkey 9.1. The other servers do not know its last word.
#[test]
fn a_coordinated_failover_by_sentinel_loses_no_grant() {
    let first = Server::on_port(&[]);
    let second = Server::on_port(&["--replicaof", &format!("127.0.0.1 {}", first.port)]);
    let (_folder, sentinel) = sentinel(first.port);
    let mut asks = sentinel.client();
    let mut failover = || command("SENTINEL FAILOVER main COORDINATED").query::<()>(&mut asks);
    if !call::<String>(&mut first.client(), "INFO server").contains("valkey_version:9.1.") {
        let error = failover().expect_err("an unknown word");
        assert!(error.to_string().contains("wrong number of arguments"), "{error}");
        return;
    }
    // Calls until the server is no primary any more. Returns the grants, and the calls whose reply was lost.
    let work = |_: usize, client: &mut Connection| {
        let mut granted = 0;
        for _ in 0..3_000_000 {
            match command("RL.FIXED key 1000000000 1d").query::<Vec<i64>>(client) {
                Ok(reply) => granted += reply[0],
                Err(error) => return (granted, i64::from(error.is_io_error() || error.is_connection_dropped())),
            }
        }
        (granted, 0)
    };
    // The sentinel refuses this until it knows the replica.
    let meanwhile = || wait_for("the failover", || failover().is_ok());
    let ((), ended) = crowd_while(&first, 4, meanwhile, work);
    let sum = |parts: fn(&(i64, i64)) -> i64| ended.iter().map(parts).sum::<i64>();
    let (granted, unknown) = (sum(|ended| ended.0), sum(|ended| ended.1));
    wait_for("the new primary", || is(&second, "master"));
    let used = 1_000_000_000 - limit(&mut second.client(), "RL.PEEK FIXED key 1000000000 1d")[2];
    assert!(
        granted > 1000 && (granted..=granted + unknown).contains(&used),
        "{granted} granted, {unknown} unknown, {used} used"
    );
}
