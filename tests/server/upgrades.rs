//! The lines of docs/operations.md that exchange the module in a running server, the users that it describes, and limiters that are
//! carried to a server of another version or product.

use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::{Connection, Value};
use support::{
    assert_same, call, command, error, held, limit, root, server_program, snapshots, wait_for, Load, Resp, Server,
};

const MODULE: &str = "/usr/lib/redis/modules/libredis_rl.so";

fn document(name: &str) -> String {
    std::fs::read_to_string(support::root().join("docs").join(name)).expect("the document")
}

/// The lines in a document that exchange the modules, without those for the shell.
fn upgrade(document: &str) -> Vec<String> {
    let (_, rest) = document.split_once("redis-cli <<'EOF'\nCLIENT PAUSE").expect("the lines");
    let (lines, _) = rest.split_once("\nEOF\n").expect("their end");
    let module = support::module().display().to_string();
    format!("CLIENT PAUSE{lines}").replace(MODULE, &module).lines().map(Into::into).collect()
}

/// The rules of a user that docs/operations.md shows: the name, and the words after it.
fn users() -> Vec<(String, String)> {
    let document = document("operations.md");
    let lines = document.lines().filter_map(|line| line.strip_prefix("user "));
    lines.map(|line| line.split_once(' ').expect("rules")).map(|(name, rules)| (name.into(), rules.into())).collect()
}

/// A client that sends this call again and again, until the load ends, and connects again whenever its connection is closed.
/// Replies that are errors do not stop it.
fn calls_and_reconnects(server: &Server, load: &Load, resp: Resp, first: &str, again: &[&str]) {
    while load.goes_on() {
        let Ok(mut client) = server.try_client(resp) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // The reply to SUBSCRIBE is a message, which the client passes over.
        let mut is_open = first.is_empty() || client.send_packed_command(&command(first).get_packed_command()).is_ok();
        while is_open && load.goes_on() {
            let mut ends = |words: &&str| command(words).query::<Value>(&mut client).is_err_and(|error| error.is_io_error());
            is_open = !again.iter().any(&mut ends);
        }
    }
}

#[test]
fn the_module_is_exchanged_while_clients_wait_and_reconnect() {
    const WAITING: i64 = 20;
    let lines = upgrade(&document("operations.md"));
    assert_eq!(lines.iter().filter(|line| line.starts_with("MODULE ")).count(), 2);
    let (mut server, mut operator) = Server::start().and_client();
    let load = Load::default();
    limit(&mut operator, "RL.GCRA kept 10 1d COST 4");
    let (block, queued) = (["RL.GCRA key 1 1d BLOCK 1d"], ["MULTI", "RL.GCRA busy 1000000 1", "EXEC"]);
    std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| calls_and_reconnects(&server, &load, Resp::Two, "", &block));
        }
        // The server counts a client with a subscription as one of another type. On Valkey such a client can't wait, and calls again
        // and again.
        scope.spawn(|| calls_and_reconnects(&server, &load, Resp::Three, "SUBSCRIBE channel", &block));
        for _ in 0..4 {
            scope.spawn(|| calls_and_reconnects(&server, &load, Resp::Two, "", &queued));
        }
        let _ended = server.killed_at_the_end();
        let _end = load.ends_here();
        for round in 1..=10 {
            wait_for("the clients to wait", || held(&mut operator) >= WAITING);
            let replies: Vec<Value> = lines.iter().map(|line| call(&mut operator, line)).collect();
            let Some(Value::Array(replies)) = replies.last() else { panic!("{replies:?}") };
            assert_eq!(replies[2..], [Value::Okay, Value::Okay, Value::Okay], "round {round}: {replies:?}");
            call::<String>(&mut operator, "CLIENT LIST");
            assert_eq!(limit(&mut operator, "RL.PEEK GCRA kept 10 1d")[2], 6);
        }
        // The counter-check: without the lines before the transaction, the waits prevent it.
        wait_for("the clients to wait", || held(&mut operator) >= WAITING);
        let transaction = lines.iter().skip_while(|line| *line != "MULTI");
        let replies: Vec<String> =
            transaction.map(|line| format!("{:?}", command(line).query::<Value>(&mut operator))).collect();
        assert!(replies.last().expect("a reply").contains("blocked clients"), "{replies:?}");
        assert_eq!(limit(&mut operator, "RL.PEEK GCRA kept 10 1d")[2], 6, "the old module is still loaded");
    });
    wait_for("the server to end", || !server.is_alive());
}

#[test]
fn both_documents_exchange_modules_by_the_same_lines() {
    let of_migrating = upgrade(&document("migrating.md"));
    let renamed: Vec<String> = of_migrating.iter().map(|line| line.replace("UNLOAD redis-cell", "UNLOAD rl")).collect();
    assert_eq!(renamed, upgrade(&document("operations.md")));
}

#[test]
fn an_exchange_resets_the_settings_unless_it_names_them() {
    let (_server, mut client) = Server::with(&["--rl.top-keys", "64", "--rl.compat", "none"]).and_client();
    let settings = |client: &mut Connection| {
        ["rl.top-keys", "rl.compat"].map(|name| call::<Vec<String>>(client, &format!("CONFIG GET {name}")).remove(1))
    };
    assert_eq!(settings(&mut client), ["64", "none"]);
    call::<()>(&mut client, "MODULE UNLOAD rl");
    call::<()>(&mut client, &format!("MODULE LOAD {}", support::module().display()));
    assert_eq!(settings(&mut client), ["128", "cl.throttle"]);
    call::<()>(&mut client, "MODULE UNLOAD rl");
    let document = document("operations.md");
    let (_, rest) = document.split_once("`MODULE LOADEX ").expect("the line");
    let (line, _) = rest.split_once('`').expect("its end");
    call::<()>(&mut client, &format!("MODULE LOADEX {}", line.replace(MODULE, &support::module().display().to_string())));
    assert_eq!(settings(&mut client), ["256", "none"]);
}

#[test]
fn an_operator_sees_who_is_limited_and_who_waits_and_changes_nothing() {
    let (server, mut owner) = Server::start().and_client();
    for (name, rules) in users() {
        call::<()>(&mut owner, &format!("ACL SETUSER {name} {rules}"));
    }
    let mut client = server.client();
    call::<()>(&mut client, "AUTH operator a-third-secret");
    for words in ["RL.TOP", "CLIENT LIST", "CLIENT UNBLOCK 0", "RL.INSPECT limit:a", "RL.PEEK GCRA limit:a 1 1", "INFO rl"] {
        call::<Value>(&mut client, words);
    }
    for words in
        ["RL.GCRA limit:a 1 1", "RL.INSPECT other", "CLIENT KILL ID 1000", "CONFIG GET *", "GET limit:a", "FLUSHALL"]
    {
        assert!(error(&mut client, &command(words)).contains("NOPERM"), "{words}");
    }
}

/// The lines that look for users whose rules name the module's commands, of a document.
fn search(document: &str) -> &str {
    let start = document.find("users=$(redis-cli -e ACL LIST)").expect("the lines");
    document[start..].split_once("```").expect("the end of the lines").0
}

#[test]
fn users_that_forbid_an_upgrade_are_found() {
    let document = document("operations.md");
    let (server, mut client) = Server::with(&["--rl.compat", "cl.throttle gcra"]).and_client();
    let cli = format!("{} -s {}", support::cli_program(), server.socket().display());
    let found = || {
        let output =
            std::process::Command::new("bash").args(["-euc", &search(&document).replace("redis-cli", &cli)]).output();
        let text = String::from_utf8(output.expect("bash runs").stdout).expect("text");
        !text.starts_with("No user")
    };
    // Without an answer, the lines do not say that there is no such user.
    for (password, expected) in [("secret", true), ("", false)] {
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(password).exec(&mut client).expect("the password is set");
        assert_eq!(found(), expected, "{password}");
    }
    // Names, passwords and keys that look like commands do not matter.
    call::<()>(&mut client, "ACL SETUSER rl.gcra on >cl.x ~rl.* ~gcra:* +@all");
    assert!(!found());
    let shown = users();
    assert_eq!(shown.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["app", "dashboard", "operator"]);
    for rules in shown.iter().map(|(_, rules)| &**rules).chain(["+rl.gcra", "+@all -rl.top", "+cl.throttle", "+gcra"]) {
        call::<()>(&mut client, &format!("ACL SETUSER someone reset {rules}"));
        assert!(found(), "{rules}");
    }
    call::<()>(&mut client, "ACL DELUSER someone");
    assert!(!found());
}

#[test]
fn a_server_whose_users_name_the_commands_needs_the_module() {
    for (name, rules) in users() {
        let options: Vec<&str> = ["--user", &name].into_iter().chain(rules.split(' ')).collect();
        let log = Server::refusing_without_module(&options);
        assert!(log.contains("Error loading ACL rule '+rl.") && log.contains("Critical error while loading ACLs"), "{log}");
        Server::of(&server_program(), true, &options);
    }
}

#[test]
fn records_with_ids_of_the_former_version_are_read_and_rewritten_by_the_next_write() {
    let (_server, mut client) = Server::start().and_client();
    let version = |client: &mut Connection, name| call::<Vec<u8>>(client, &format!("GETRANGE {name} 1 1"));
    for (name, record) in support::records_of_version_2() {
        redis::cmd("SET").arg(name).arg(&record).arg("PX").arg(100_000_000).exec(&mut client).expect("the record is stored");
        let words = if name == "LEASE" { "10 3650d" } else { "10 3650d COST 9" };
        let held = if name == "LEASE" { 2 } else { 3 };
        assert_eq!(call::<Option<Value>>(&mut client, &format!("RL.RELEASE {name} b")), None, "{name}");
        assert_eq!(version(&mut client, name), [2], "{name}");
        assert!(call::<Option<Value>>(&mut client, &format!("RL.RELEASE {name} c")).is_some(), "{name}");
        assert_eq!(version(&mut client, name), [3], "{name}");
        assert_eq!(limit(&mut client, &format!("RL.{name} {name} {words} ID a"))[0], held, "{name}");
        assert!(call::<i64>(&mut client, &format!("PTTL {name}")) > 100_000_000, "{name}");
    }
}

// ---- From one server to another ----

/// The folder of the append-only file, which has commands only, since `aof-use-rdb-preamble` is `no`.
const APPEND_ONLY: &str = "appendonlydir";
const REPLICATION: &str = "replication";

/// A charge of each kind, and the same call with `RL.PEEK`.
const CHARGES: [(&str, &str); 8] = [
    ("RL.FIXED fixed 10 1d COST 3", "RL.PEEK FIXED fixed 10 1d"),
    ("RL.SLIDE slide 10 12h COST 3", "RL.PEEK SLIDE slide 10 12h"),
    ("RL.GCRA gcra 10 1d COST 3", "RL.PEEK GCRA gcra 10 1d"),
    ("RL.BUCKET bucket 10 1d CAPACITY 20 STEP COST 5", "RL.PEEK BUCKET bucket 10 1d CAPACITY 20 STEP"),
    ("RL.GCRA gcra:debt 10 1d FORCE 14", "RL.PEEK GCRA gcra:debt 10 1d"),
    ("RL.GCRA gcra:ids 10 1d COST 4 ID a", "RL.PEEK GCRA gcra:ids 10 1d"),
    ("RL.SLIDE slide:ids 10 12h COST 4 ID a", "RL.PEEK SLIDE slide:ids 10 12h"),
    ("RL.LEASE leases 10 1d COST 4 ID a", "RL.PEEK LEASE leases 10 1d"),
];

/// The programs of all servers that `make servers` has installed, or of the one to test on.
fn programs() -> Vec<String> {
    let folders = fs::read_dir(root().join("target/servers")).into_iter().flatten().flatten();
    let programs = folders.flat_map(|folder| ["redis-server", "valkey-server"].map(|name| folder.path().join(name)));
    let found: Vec<_> = programs.filter(|program| program.exists()).map(|program| program.display().to_string()).collect();
    if found.is_empty() {
        vec![server_program()]
    } else {
        found
    }
}

/// Starts this program with the keys of `source`, which it gets in this way: a file or a folder, or by replication.
fn start_with(program: &str, source: &Server, way: &str) -> Server {
    if way == REPLICATION {
        let target = Server::of(program, true, &["--replicaof", &format!("127.0.0.1 {}", source.port)]);
        target.wait_until_linked();
        call::<()>(&mut target.client(), "REPLICAOF NO ONE");
        return target;
    }
    let mut target = Server::of(program, true, if way == APPEND_ONLY { &["--appendonly", "yes"] } else { &[] });
    target.crash();
    copy(&source.dir().join(way), &target.dir().join(way));
    target.restart();
    target
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).expect("a copy");
        return;
    }
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).expect("a folder");
    for file in fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        copy(&file.path(), &to.join(file.file_name()));
    }
}

/// The first nine bytes of the server's RDB file: the product, and the version of the format.
fn format(server: &Server) -> String {
    call::<()>(&mut server.client(), "SAVE");
    let file = fs::read(server.dir().join("dump.rdb")).expect("a file");
    String::from_utf8_lossy(&file[..9]).into_owned()
}

/// Whether a server that writes files of the format `own` gets the keys in this way from one that writes the format `other`.
fn reads(own: &str, other: &str, way: &str) -> bool {
    // Valkey sends its replicas the format of Valkey 8 and Redis 7.2, unless they ask for a newer one.
    let sent = if way == REPLICATION && other.starts_with("VALKEY") { "REDIS0011" } else { other };
    let newest = if own.starts_with("VALKEY") { "REDIS0011" } else { own };
    way == APPEND_ONLY || sent == own || sent.starts_with("REDIS") && sent <= newest
}

#[test]
fn limiters_are_the_same_on_another_server() {
    let tested = server_program();
    let pairs = programs().into_iter().flat_map(|other| [(tested.clone(), other.clone()), (other, tested.clone())]);
    for (from, to) in pairs {
        let source = Server::of(&from, true, &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"]);
        let mut old = source.client();
        for (charge, _) in CHARGES {
            assert!(limit(&mut old, charge)[0] > 0, "{charge}");
        }
        for _ in 0..100 {
            limit(&mut old, "RL.SLIDE log 1000 12h");
        }
        source.rewrite_append_only_file();
        let (own, other) = (format(&Server::of(&to, true, &[])), format(&source));
        for way in [APPEND_ONLY, "dump.rdb", REPLICATION].into_iter().filter(|way| reads(&own, &other, way)) {
            let target = start_with(&to, &source, way);
            let mut new = target.client();
            assert_same(&snapshots(&mut old), &snapshots(&mut new));
            for (charge, peek) in CHARGES {
                let what = format!("{charge}: {way} from {from} to {to}");
                let ([granted, limit_then, left, ..], now) = (limit(&mut old, peek), limit(&mut new, peek));
                assert_eq!([granted, limit_then, left], now[..3], "{what}");
                if charge.contains(" ID ") {
                    // The id is known: the call is a retry, which charges nothing.
                    assert_eq!(limit(&mut new, charge)[..3], [4, 10, 6], "{what}");
                } else {
                    // A charge of all that is left is granted, and one more unit is denied.
                    let words = peek.replace("PEEK ", "");
                    assert_eq!(limit(&mut new, &format!("{words} UPTO 100"))[0], left, "{what}");
                    assert_eq!(limit(&mut new, &words)[0], 0, "{what}");
                }
            }
        }
    }
}
