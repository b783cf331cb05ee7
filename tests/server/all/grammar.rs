//! What `RL.ALL` accepts after its last rule, what it refuses, and the shape of its replies.

use support::{
    assert_same, call, command, error, held, info, limit, pipe, settle, snapshots, traces, AllRows, Held, Resp, Server,
};

use super::all;
use crate::waiting::Raw;

/// How the errors for a duration go on.
const DURATION: &str = ": a number of seconds, or one followed by us, ms, s, m, h or d; exact to the microsecond";

#[test]
fn the_id_and_the_wait_follow_the_last_rule_in_any_order() {
    let (_server, mut client) = Server::start().and_client();
    for (number, rest) in [
        "GCRA 10 1d LEASE 10 1h COST 2 ID a BLOCK 1s",
        "GCRA 10 1d LEASE 10 1h BLOCK 1s ID a COST 2",
        "gcra 10 1d burst 10 lease 10 1h block 1000ms cost 2 id a",
        "LEASE 10 1h COST 2 BUCKET 10 1d ID a STEP BLOCK 1 CAPACITY 10",
        "SLIDE 10 1d FIXED 10 1d ID BLOCK BLOCK 1",
        "SLIDE 10 1d FIXED 10 1d BLOCK 1 ID LEASE",
        "SLIDE 10 1d FIXED 10 1d ID a",
        "SLIDE 10 1d FIXED 10 1d BLOCK 1",
    ]
    .iter()
    .enumerate()
    {
        let (granted, wait, rows) = all(&mut client, &format!("RL.ALL 2 a:{number} b:{number} {rest}"));
        let wanted =
            if rest.contains("2 BU") { [2, 1] } else { [1, if rest.to_uppercase().contains("COST") { 2 } else { 1 }] };
        assert_eq!((granted, wait, [rows[0][0], rows[1][0]]), (1, 0, wanted), "{rest}");
    }
    // The value of ID may be a keyword.
    for (key, id) in [("a:4", "BLOCK"), ("b:4", "BLOCK"), ("a:5", "LEASE"), ("b:5", "LEASE")] {
        assert!(settle(&mut client, &format!("RL.RELEASE {key} {id}")).is_some(), "{key}");
    }
}

#[test]
fn a_refused_call_changes_no_key() {
    const ALGORITHMS: &str = "must be FIXED, SLIDE, GCRA, BUCKET or LEASE";
    const NUMKEYS: &str = "ERR numkeys must be a whole number from 1 to 1024";
    let (_server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.GCRA gcra 10 1d COST 4 ID a");
    limit(&mut client, "RL.LEASE lease 3 1d COST 2 ID a");
    limit(&mut client, "RL.FIXED fixed 10 1d");
    call::<()>(&mut client, "SET text hello");
    call::<()>(&mut client, "RPUSH list a");
    let keys = ["gcra", "lease", "fixed", "text"];
    let before = keys.map(|key| support::snapshot(&mut client, key));
    let changes = traces(&mut client);
    let long = "x".repeat(65);
    for (words, text) in [
        ("RL.ALL 2 gcra new ID b GCRA 10 1d FIXED 10 1d", format!("ERR unknown algorithm 'ID': {ALGORITHMS}")),
        ("RL.ALL 1 a FIXED 10", "ERR wrong number of arguments for 'rl.all' command".into()),
        ("RL.ALL 0 FIXED 10 60 a", NUMKEYS.into()),
        ("RL.ALL x a FIXED 10 60", NUMKEYS.into()),
        ("RL.ALL -1 a FIXED 10 60", NUMKEYS.into()),
        ("RL.ALL 1025 a FIXED 10 60", NUMKEYS.into()),
        ("RL.ALL 2 a b FIXED 10 60", "ERR fewer rules than keys: numkeys is 2, and the rules are 1".into()),
        ("RL.ALL 9 a b FIXED 10 60", "ERR fewer rules than keys: numkeys is 9, and the rules are 0".into()),
        ("RL.ALL 1 a FIXED 10 60 GCRA 10 60", "ERR more rules than keys: numkeys is 1".into()),
        ("RL.ALL 1 a b FIXED 10 60", format!("ERR unknown algorithm 'b': {ALGORITHMS}")),
        ("RL.ALL 2 a FIXED 10 60 GCRA", format!("ERR unknown algorithm '10': {ALGORITHMS}")),
        ("RL.ALL 2 a b FIXED 10 60 GCRA 10", "ERR GCRA needs a limit and a period".into()),
        ("RL.ALL 2 a b FIXED 10 60 GCRA x 60", "ERR limit must be a whole number from 0 to 1000000000000".into()),
        ("RL.ALL 3 a b a FIXED 10 60 GCRA 10 60 FIXED 10 60", "ERR keys 1 and 3 are the same".into()),
        ("RL.ALL 2 a fixed GCRA 10 60 GCRA 10 60", "WRONGTYPE key 2 holds a FIXED limiter, not a GCRA limiter".into()),
        ("RL.ALL 2 a list GCRA 10 60 GCRA 10 60", "WRONGTYPE key 2 holds a list, not a GCRA limiter".into()),
        ("RL.ALL 2 text a SLIDE 10 60 GCRA 10 60", "WRONGTYPE key 1 holds a string that is not a SLIDE limiter".into()),
        (
            "RL.ALL 2 a b FIXED 10 60 GCRA 1 3650d BURST 1000000000000 COST 1000000000000",
            "ERR the result is too large for a limiter's record".into(),
        ),
        ("RL.ALL 2 gcra new GCRA 10 1d ID b FIXED 10 1d ID b", "ERR ID must follow the last rule".into()),
        ("RL.ALL 2 gcra new GCRA 10 1d BLOCK 1 FIXED 10 1d ID b BLOCK 1", "ERR BLOCK must follow the last rule".into()),
        (&format!("RL.ALL 2 gcra new GCRA 10 1d FIXED 10 1d ID {long}"), "ERR ID must be 1 to 64 bytes long".into()),
        ("RL.ALL 2 gcra new GCRA 10 1d FIXED 10 1d BLOCK 0", format!("ERR BLOCK must be above 0, at most 1d{DURATION}")),
        ("RL.ALL 2 gcra new GCRA 10 1d FIXED 10 1d BLOCK 86401", format!("ERR BLOCK must be above 0, at most 1d{DURATION}")),
        ("RL.ALL 2 new gcra LEASE 10 1d GCRA 10 1d BLOCK 1", "ERR LEASE needs an ID".into()),
        ("RL.ALL 2 gcra new GCRA 10 1d LEASE 65537 1d ID b", "ERR limit must be a whole number from 0 to 65536".into()),
        ("RL.ALL 2 gcra new GCRA 10 1d LEASE 10 ID b", format!("ERR ttl must be from 1ms to 3650d{DURATION}")),
        ("RL.ALL 3 new gcra gcra GCRA 10 1d GCRA 10 1d GCRA 10 1d ID b BLOCK 1", "ERR keys 2 and 3 are the same".into()),
        (
            "RL.ALL 2 new gcra GCRA 10 1d LEASE 10 1d ID a BLOCK 1",
            "WRONGTYPE key 2 holds a GCRA limiter, not a LEASE limiter".into(),
        ),
        (
            "RL.ALL 2 gcra list GCRA 10 1d LEASE 10 1d ID b BLOCK 1",
            "WRONGTYPE key 2 holds a list, not a LEASE limiter".into(),
        ),
        (
            "RL.ALL 2 gcra text GCRA 10 1d LEASE 10 1d ID b",
            "WRONGTYPE key 2 holds a string that is not a LEASE limiter".into(),
        ),
        (
            "RL.ALL 3 new gcra lease FIXED 10 1d GCRA 10 1d LEASE 3 1d COST 1 ID a BLOCK 1",
            "ERR COST must be 2, the units that this ID holds, or be omitted".into(),
        ),
        (
            "RL.ALL 2 gcra new GCRA 10 1d GCRA 1 3650d BURST 1000000000000 COST 1000000000000 ID b BLOCK 1d",
            "ERR the result is too large for a limiter's record".into(),
        ),
    ] {
        assert_eq!(error(&mut client, &command(words)), text, "{words}");
    }
    let mut empty = command("RL.ALL 1 gcra GCRA 10 1d ID");
    assert_eq!(error(&mut client, empty.arg("")), "ERR ID must be 1 to 64 bytes long");
    assert_eq!(keys.map(|key| support::snapshot(&mut client, key)), before);
    assert_eq!(call::<i64>(&mut client, "DBSIZE"), 5);
    assert_eq!(traces(&mut client), changes);
    assert_eq!(held(&mut client), 0);
}

/// The reply as the server sends it: all in integers and arrays.
fn lines(reply: &AllRows) -> Vec<String> {
    let (granted, wait, rows) = reply;
    let mut lines = vec!["*3".into(), format!(":{granted}"), format!(":{wait}"), format!("*{}", rows.len())];
    for row in rows {
        lines.push("*5".into());
        lines.extend(row.iter().map(|number| format!(":{number}")));
    }
    lines
}

#[test]
fn replies_are_alike_in_both_protocols_and_with_any_number_of_keys() {
    let (server, mut client) = Server::start().and_client();
    for protocol in [2, 3] {
        call::<()>(&mut client, "FLUSHALL");
        let mut raw = Raw::connect(&server);
        raw.send(&format!("HELLO {protocol}"));
        raw.send("PING");
        raw.up_to("+PONG");
        let mut ask = |words: &str| {
            raw.send(words);
            raw.send("PING");
            let mut lines = raw.up_to("+PONG");
            lines.pop();
            lines
        };
        // With one key, the reply has the shape of RL.ALL, too: granted at once, granted later, denied at once, denied late.
        let day = 86_400_000;
        assert_eq!(ask("RL.ALL 1 one FIXED 1 1d BLOCK 1d"), lines(&(1, 0, vec![[1, 1, 0, 0, day]])), "RESP{protocol}");
        limit(&mut client, "RL.LEASE slots 1 1h ID holder");
        let denied = ask("RL.ALL 1 slots LEASE 1 1h COST 2 ID a BLOCK 1d");
        assert_eq!(denied[..9], lines(&(0, -1, vec![[0, 1, 0, -1, 0]]))[..9], "RESP{protocol}");
        let late = ask("RL.ALL 1 slots LEASE 1 1h ID a BLOCK 10ms");
        assert_eq!(late[..3], ["*3", ":0", &late[8].clone()], "RESP{protocol}: {late:?}");
        assert_eq!((late[3..8].join(" "), late.len()), ("*1 *5 :0 :1 :0".into(), 10), "RESP{protocol}: {late:?}");
        limit(&mut client, "RL.FIXED short 1 100ms");
        let granted = ask("RL.ALL 2 short leases FIXED 1 100ms LEASE 5 1h COST 3 ID a BLOCK 30");
        let reset: i64 = granted[9][1..].parse().expect("a number");
        assert!((0..=100).contains(&reset), "RESP{protocol}: {granted:?}");
        assert_eq!(granted, lines(&(1, 0, vec![[1, 1, 0, 0, reset], [3, 5, 2, 0, 3_600_000]])), "RESP{protocol}");
        let errors = ask("RL.ALL 1 one LEASE 1 1d");
        assert_eq!(errors, ["-ERR LEASE needs an ID"], "RESP{protocol}");
    }
}

#[test]
fn a_call_of_one_key_that_waits_answers_in_the_shape_of_rl_all() {
    let (server, mut client) = Server::start().and_client();
    limit(&mut client, "RL.GCRA key 1 1d");
    let granted = Held::send(&server, "RL.ALL 1 key GCRA 1 1d BLOCK 1d");
    let mut denied = Held::send(&server, "RL.ALL 1 key GCRA 1 1d BLOCK 1d");
    let mut wrong = Held::send(&server, "RL.ALL 1 key GCRA 1 1d BLOCK 1d");
    call::<i64>(&mut client, "DEL key");
    let (ok, wait, rows) = granted.rows();
    assert_eq!((ok, wait, rows.len(), &rows[0][..4]), (1, 0, 1, &[1, 1, 0, 0][..]));
    call::<i64>(&mut client, &format!("CLIENT UNBLOCK {}", denied.id));
    let (ok, wait, rows) = denied.answer::<AllRows>().row.expect("a denial");
    assert_eq!((ok, wait, rows.len(), &rows[0][..3]), (0, rows[0][3], 1, &[0, 1, 0][..]));
    call::<()>(&mut client, "RPUSH list 1");
    call::<()>(&mut client, "RENAME list key");
    assert_eq!(wrong.answer::<AllRows>().row.expect_err("an error"), "WRONGTYPE key 1 holds a list, not a GCRA limiter");
}

#[test]
fn transactions_scripts_and_functions_are_answered_at_once() {
    let (_server, mut client) = Server::start().and_client();
    let words = "RL.ALL 2 {k}one {k}two FIXED 5 1h LEASE 1 1h ID # BLOCK 1d";
    let mut eval = redis::cmd("EVAL");
    eval.arg("return redis.call(unpack(ARGV))").arg(0);
    let library = "#!lua name=lib\nredis.register_function('all', function(keys, args) return redis.call(unpack(args)) end)";
    redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut client).expect("a library");
    let mut function = redis::cmd("FCALL");
    function.arg("all").arg(0);
    let mut charged = 0;
    for (number, way) in ["MULTI", "EVAL", "FCALL"].into_iter().enumerate() {
        for first in [true, false] {
            let words = words.replace('#', &format!("id:{number}:{first}"));
            let before = snapshots(&mut client);
            let reply: AllRows = match way {
                "MULTI" => pipe([&words]).atomic().query::<Vec<AllRows>>(&mut client).expect("a reply").remove(0),
                "EVAL" => eval.clone().arg(words.split(' ').collect::<Vec<_>>()).query(&mut client).expect("a reply"),
                _ => function.clone().arg(words.split(' ').collect::<Vec<_>>()).query(&mut client).expect("a reply"),
            };
            let (granted, wait, rows) = reply;
            if first {
                charged += 1;
                assert_eq!((granted, wait, rows[0][0], rows[1][0]), (1, 0, 1, 1), "{way}: {rows:?}");
            } else {
                // wait_ms is the whole wait. The time that BLOCK would have waited is not subtracted.
                assert_eq!((granted, rows[0][..3].to_vec(), rows[1][0]), (0, vec![1, 5, 5 - charged], 0), "{way}: {rows:?}");
                assert!(wait == rows[1][3] && wait > 3_500_000, "{way}: {rows:?}");
                assert_same(&snapshots(&mut client), &before);
            }
        }
        assert!(settle(&mut client, &format!("RL.RELEASE {{k}}two id:{number}:true")).is_some(), "{way}");
        assert_eq!(held(&mut client), 0);
    }
    assert_eq!(info(&mut client, "rl", "rl_waits"), 0);
}

#[test]
fn the_server_finds_the_keys_whatever_follows_the_rules() {
    let (server, mut client) = Server::start().and_client();
    call::<()>(&mut client, "ACL SETUSER some on >secret ~a ~b +@all");
    let mut some = server.client_of(Resp::Two);
    call::<()>(&mut some, "AUTH some secret");
    limit(&mut client, "RL.LEASE a 1 1h ID holder");
    let replica = Server::on_port(&["--replicaof", "127.0.0.1 1"]);
    for rest in ["GCRA 10 60 SLIDE 10 60", "GCRA 10 60 SLIDE 10 60 ID c BLOCK 5"] {
        let words = format!("RL.ALL 3 a b c LEASE 10 60 {rest}");
        assert_eq!(call::<Vec<String>>(&mut client, &format!("COMMAND GETKEYS {words}")), ["a", "b", "c"]);
        let access: Vec<(String, Vec<String>)> = call(&mut client, &format!("COMMAND GETKEYSANDFLAGS {words}"));
        assert!(access.iter().all(|(_, flags)| flags == &["RW", "access", "update"]), "{access:?}");
        // A user with access to some of the keys gets no answer about the others, and does not wait.
        assert!(error(&mut some, &command(&words)).contains("NOPERM"));
        // A read-only replica waits for nothing.
        assert!(error(&mut replica.client(), &command(&words)).starts_with("READONLY"));
    }
    assert_eq!(held(&mut client), 0);
    assert_eq!(call::<i64>(&mut client, "EXISTS b c"), 0);
    assert_eq!(all(&mut some, "RL.ALL 2 b a FIXED 10 60 LEASE 10 60 ID c").0, 1);
}
