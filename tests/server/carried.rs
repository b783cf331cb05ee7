//! Limiters are carried from one server to another, which may be of another version or product.

use std::fs;
use std::path::Path;

use support::{assert_same, call, limit, root, server_program, snapshots, Server};

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
