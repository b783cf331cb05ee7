//! Pauses: while one lasts, its key grants nothing, and calls that wait keep their places.

use redis::aio::MultiplexedConnection;
use redis::{Client, Connection, RedisResult, Value};
use support::witness::{Watched, A_FEW};
use support::{
    call, command, error, held, info, inspect, limit, pipe, settle, snapshot, time_us, traces, wait_for,
    watched_are_unchanged, Held, Reply, Server, LIMITERS,
};

use crate::harness::{say, work_if_worker, Worker};

const HOUR: i64 = 3_600_000;

fn pause(client: &mut Connection, words: &str) -> i64 {
    call(client, &format!("RL.PAUSE {words}"))
}

#[test]
fn the_later_end_wins_and_0_ends_a_pause() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS.into_iter().map(Some).chain([None]) {
        if let Some(name) = name {
            assert_eq!(limit(&mut client, &format!("RL.{name} key 5 1d COST 2"))[..3], [2, 5, 3], "{name}");
        }
        let before = snapshot(&mut client, "key");
        assert_eq!(pause(&mut client, "key 0"), 0);
        assert_eq!(pause(&mut client, "key 1h"), HOUR);
        assert!((HOUR - 60_000..=HOUR).contains(&pause(&mut client, "key 1s")));
        assert_eq!(pause(&mut client, "key 7200"), 2 * HOUR);
        let left = inspect(&mut client, "key", "paused_ms").expect("a pause");
        assert!((2 * HOUR - 60_000..=2 * HOUR).contains(&left), "{left}");
        let paused = snapshot(&mut client, "key");
        assert_eq!(paused.value.expect("a value").len(), 24 + before.value.as_ref().map_or(4, Vec::len));
        assert!(paused.deadline_ms >= before.deadline_ms);
        // Both in one transaction: the pause is shortened.
        let shortened: Vec<i64> = pipe(["RL.PAUSE key 0", "RL.PAUSE key 1m"]).atomic().query(&mut client).expect("replies");
        assert_eq!(shortened, [0, 60_000]);
        assert_eq!(pause(&mut client, "key 0"), 0);
        assert_eq!(snapshot(&mut client, "key"), before, "{name:?}");
        call::<()>(&mut client, "DEL key");
    }
}

#[test]
fn what_takes_is_denied_and_what_gives_back_acts_as_ever() {
    let (_server, mut client) = Server::start().and_client();
    for name in LIMITERS {
        let key = format!("key:{name}");
        let rule = format!("{key} 10 1d");
        assert_eq!(limit(&mut client, &format!("RL.{name} {rule} COST 4 ID a"))[0], 4);
        assert_eq!(limit(&mut client, &format!("RL.{name} {rule} ID b"))[0], 1);
        pause(&mut client, &format!("{key} 1h"));
        for rest in ["", "COST 2", "UPTO 20", "ID new", "RESERVE 1d COST 9", "BLOCK 10"] {
            let row = limit(&mut client, &format!("RL.{name} {rule} {rest}"));
            assert!(row[..3] == [0, 10, 0] && row[3] > HOUR - 60_000, "{name} {rest}: {row:?}");
        }
        assert_eq!(limit(&mut client, &format!("RL.{name} {rule} COST 11"))[..4], [0, 10, 0, -1]);
        assert_eq!(limit(&mut client, &format!("RL.{name} {key} 0 1d"))[..4], [0, 0, 0, -1]);
        // A booking that would act after the pause waits for the pause only.
        let row = limit(&mut client, &format!("RL.{name} {rule} RESERVE 1h"));
        assert!(row[0] == 0 && (1..=HOUR).contains(&row[3]), "{row:?}");
        for (words, granted) in [("COST 4 ID a", 4), ("FORCE 1", 1), ("REFUND 1", 1)] {
            assert_eq!(limit(&mut client, &format!("RL.{name} {rule} {words}"))[..3], [granted, 10, 0], "{name} {words}");
        }
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} {rule}"))[..3], [0, 10, 0]);
        assert_eq!(settle(&mut client, &format!("RL.SETTLE {key} a 1")).expect("a charge")[..3], [1, 10, 0]);
        assert_eq!(settle(&mut client, &format!("RL.RELEASE {key} b")).expect("a charge")[..3], [0, 10, 0]);
        assert_eq!(inspect(&mut client, &key, "remaining"), Some(0));
        pause(&mut client, &format!("{key} 0"));
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} {rule}"))[..3], [1, 10, 9], "{name}");
    }
    assert_eq!(limit(&mut client, "RL.LEASE lease 3 1d ID a")[0], 1);
    pause(&mut client, "lease 1h");
    for rest in ["ID b", "ID b BLOCK 10"] {
        assert_eq!(limit(&mut client, &format!("RL.LEASE lease 3 1d {rest}"))[..3], [0, 3, 0], "{rest}");
    }
    assert_eq!(limit(&mut client, "RL.LEASE lease 3 1d ID a RENEW")[..4], [1, 3, 0, 0]);
    assert_eq!(settle(&mut client, "RL.RELEASE lease a").expect("a lease")[..3], [0, 3, 0]);
    // With redis-cell's reply: denied, limit, remaining, retry-after, reset.
    pause(&mut client, "cell 1h");
    let row: [i64; 5] = call(&mut client, "CL.THROTTLE cell 9 10 60 1");
    assert!(row[..3] == [1, 10, 0] && row[3] > 3_540, "{row:?}");
    // RL.ALL takes from both or from none.
    pause(&mut client, "a 1h");
    let (granted, wait, rows): (i64, i64, Vec<[i64; 5]>) = call(&mut client, "RL.ALL 2 a b GCRA 5 1d FIXED 5 1d");
    assert!(granted == 0 && wait > HOUR - 60_000 && rows[0][0] == 0, "{rows:?}");
    assert_eq!(limit(&mut client, "RL.PEEK FIXED b 5 1d")[2], 5);
}

#[test]
fn a_pause_that_changes_nothing_writes_nothing() {
    let (server, mut client) = Watched::on_port(&["--appendonly", "yes"]).and_client();
    let _replica = server.replica(&[]);
    pause(&mut client, "key 1h");
    limit(&mut client, "RL.GCRA other 1 1d");
    call::<()>(&mut client, "WATCH key other none");
    let before = traces(&mut client);
    for words in ["key 1s", "other 0", "none 0"] {
        pause(&mut client, words);
    }
    assert_eq!(limit(&mut client, "RL.GCRA key 1 1d")[0], 0);
    let after = traces(&mut client);
    // The stream also has a PING of the primary, now and then.
    assert!(before[1..] == after[1..] && after[0] - before[0] < 100, "{before:?} and {after:?}");
    assert!(watched_are_unchanged(&mut client));
    assert_eq!(info(&mut client, "rl", "rl_pauses"), 1);
    assert_eq!(info(&mut client, "rl", "rl_gcra_denied"), 1);
    pause(&mut client, "key 2h");
    pause(&mut client, "key 0");
    // Pauses that are set or lengthened count; one that a command ends is an event, too.
    assert_eq!(info(&mut client, "rl", "rl_pauses"), 2);
    assert_eq!(server.events("rl.pause", "key").len(), 3);
    assert_eq!(server.events("rl.denied", "key").len(), 1);
}

#[test]
fn a_pause_is_refused_where_it_makes_no_sense() {
    let (_server, mut client) = Server::start().and_client();
    call::<()>(&mut client, "RPUSH list a");
    call::<()>(&mut client, "SET text hello");
    for (words, expected) in [
        ("RL.PAUSE list 1", "WRONGTYPE "),
        ("RL.PAUSE text 0", "WRONGTYPE "),
        ("RL.PAUSE key 31d1", "ERR "),
        ("RL.PAUSE key 32d", "ERR "),
        ("RL.PAUSE key 1us", "ERR "),
        ("RL.PAUSE key -1", "ERR "),
    ] {
        let found = error(&mut client, &command(words));
        assert!(found.starts_with(expected), "{words}: {found}");
    }
    call::<()>(&mut client, "ACL SETUSER someone on >secret ~mine:* +@all");
    limit(&mut client, "RL.GCRA old 5 1d");
    call::<()>(&mut client, "CONFIG SET maxmemory 1");
    assert_eq!(pause(&mut client, "old 1h"), HOUR);
    assert!(error(&mut client, &command("RL.PAUSE new 1h")).starts_with("OOM "));
    assert_eq!([pause(&mut client, "new 0"), pause(&mut client, "old 0")], [0, 0]);
    call::<()>(&mut client, "AUTH someone secret");
    assert!(error(&mut client, &command("RL.PAUSE other 1")).starts_with("NOPERM"));
    let (_replica, mut client) = Server::on_port(&["--replicaof", "127.0.0.1 1"]).and_client();
    assert!(error(&mut client, &command("RL.PAUSE key 1")).starts_with("READONLY"));
}

#[test]
fn without_the_module_a_paused_key_expires() {
    let (mut server, mut client) = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]).and_client();
    limit(&mut client, "RL.GCRA key 1000 1");
    pause(&mut client, "key 2s");
    let before = snapshot(&mut client, "key");
    server.crash_and_restart_with_module(false);
    let mut client = server.client();
    // On a busy machine, the restart may have taken longer than the pause.
    let after = snapshot(&mut client, "key");
    assert!(after == before || time_us(&mut client) / 1_000 >= before.deadline_ms, "{after:?}");
    wait_for("the key's end", || call::<i64>(&mut client, "EXISTS key") == 0);
    assert!(time_us(&mut client) / 1_000 >= before.deadline_ms);
}

// ---- Lines ----

#[test]
fn calls_that_wait_go_on_when_the_pause_ends() {
    let (server, mut client) = Watched::start().and_client();
    for name in LIMITERS {
        let key = format!("key:{name}");
        let (_, before, after) = timed_pause(&mut client, &format!("{key} 300ms"));
        let waiting: Vec<_> = (0..5).map(|_| Held::send(&server, &format!("RL.{name} {key} 5 1d BLOCK 1h"))).collect();
        let replies = support::replies(waiting);
        for reply in &replies {
            assert_eq!(reply.granted(), 1);
            assert!(reply.at_us() >= before + 300_000, "{name}");
            server.assert_not_late(name, (after + 300_000).max(reply.sent_us), reply.at_us(), A_FEW);
        }
    }
}

/// Sets a pause. Returns what the command replies, and the server's time before and after it.
fn timed_pause(client: &mut Connection, words: &str) -> (i64, i64, i64) {
    let before = time_us(client);
    (pause(client, words), before, time_us(client))
}

#[test]
fn ending_shortening_or_deleting_a_pause_serves_the_line() {
    let (server, mut client) = Server::start().and_client();
    for end in ["RL.PAUSE key 0", "DEL key", "PEXPIRE key 1", "RL.PAUSE key 0;RL.PAUSE key 1ms"] {
        pause(&mut client, "key 2h");
        let waiting = Held::send(&server, "RL.GCRA key 5 1d BLOCK 1d");
        let lease = Held::send(&server, "RL.ALL 2 key lease GCRA 5 1d LEASE 5 1d ID a BLOCK 1d");
        assert_eq!(held(&mut client), 2);
        // A wait that is shorter than the pause ends at once.
        assert_eq!(limit(&mut client, "RL.GCRA key 5 1d BLOCK 1h")[0], 0);
        pipe(end.split(';')).atomic().exec(&mut client).expect("replies");
        assert_eq!(waiting.row()[0], 1, "{end}");
        assert_eq!(lease.rows().0, 1, "{end}");
        call::<()>(&mut client, "DEL key lease");
    }
}

#[test]
fn a_call_with_several_keys_waits_for_all_pauses() {
    let (server, mut client) = Server::start().and_client();
    let before = time_us(&mut client);
    pause(&mut client, "a 100ms");
    pause(&mut client, "b 300ms");
    let mut waiting = Held::send(&server, "RL.ALL 3 a b c GCRA 5 1d LEASE 5 1d SLIDE 5 1d ID x BLOCK 1h");
    let reply: Reply<support::AllRows> = waiting.answer();
    assert_eq!(reply.row.as_ref().expect("a reply").0, 1);
    assert!(reply.at_us() >= before + 300_000, "{reply:?}");
}

/// 1000 clients of 8 processes wait for one key. Their units are free, but the key is paused. The pause is lengthened, the replica
/// takes over, and the pause is shortened. Then all are granted their units in the order in which they came to the new primary.
#[test]
fn a_fleet_of_1000_waits_for_the_end_of_a_pause() {
    const PROCESSES: usize = 8;
    const CLIENTS: usize = 1_000;
    work_if_worker(wait_in_line);
    let (primary, mut client) = Server::on_port(&[]).and_client();
    let port = call::<Vec<String>>(&mut client, "CONFIG GET port").remove(1);
    let replica = Watched::on_port(&["--replicaof", &format!("127.0.0.1 {port}")]);
    replica.wait_until_linked();
    let mut other = replica.client();
    assert_eq!(limit(&mut client, "RL.GCRA key 500 1 BURST 1 FORCE 500000")[0], 500_000);
    let name = "pause::a_fleet_of_1000_waits_for_the_end_of_a_pause";
    let task = format!("{}\n{}\n{}", primary.socket().display(), replica.socket().display(), CLIENTS / PROCESSES);
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| Worker::start(name, &task)).collect();
    wait_for("the clients", || held(&mut client) == CLIENTS as i64);
    // The units are not due yet. The pause is set; then they are due.
    pause(&mut client, "key 1h");
    assert_eq!(limit(&mut client, "RL.GCRA key 500 1 BURST 1 REFUND 500000")[2], 0);
    pause(&mut client, "key 2h");
    assert_eq!(call::<i64>(&mut client, "WAIT 1 60000"), 1);
    assert_eq!(snapshot(&mut client, "key"), snapshot(&mut other, "key"));
    assert_eq!(held(&mut client), CLIENTS as i64);
    // The failover.
    let new_port = call::<Vec<String>>(&mut other, "CONFIG GET port").remove(1);
    call::<()>(&mut other, "REPLICAOF NO ONE");
    call::<()>(&mut client, &format!("REPLICAOF 127.0.0.1 {new_port}"));
    wait_for("the clients at the new primary", || held(&mut other) == CLIENTS as i64);
    let waiting: Vec<Vec<(String, Value)>> = call(&mut other, "RL.TOP WAITING");
    assert_eq!(waiting.len(), 1);
    let before = time_us(&mut other);
    pipe(["RL.PAUSE key 0", "RL.PAUSE key 500ms"]).atomic().exec(&mut other).expect("replies");
    let after = time_us(&mut other);
    let mut replies = Vec::new();
    for worker in &mut fleet {
        while let Some(line) = worker.line() {
            let numbers: Vec<i64> = line.split(' ').map(|word| word.parse().expect(&line)).collect();
            replies.push(Reply { row: Ok([numbers[0], 500, 0, 0, 0]), sent_us: numbers[1], at_us: Some(numbers[2]) });
        }
        assert!(worker.wait().success());
    }
    assert!(replies.len() == CLIENTS && replies.iter().all(|reply| reply.granted() == 1));
    replies.sort_by_key(|reply| reply.sent_us);
    let grants = replica.events("rl.gcra", "key");
    // Nobody is granted before the end, or before the limit allows it.
    for (index, grant) in grants.iter().enumerate() {
        assert!(*grant >= before + 500_000 + index as i64 * 2_000, "grant {index}");
    }
    replica.assert_not_late("the first grant", after + 500_000, grants[0], A_FEW);
    replica.assert_in_turn(&grants, &replies);
}

/// In a worker process: waits for a unit with each of its clients. Says for each how much it was granted, and the server's time before
/// it called and after the reply. `task` has two servers' sockets, of which the second takes over, and a number of clients.
fn wait_in_line(task: &str) {
    let lines: Vec<&str> = task.lines().collect();
    let servers = [lines[0], lines[1]].map(|path| Client::open(format!("unix://{path}")).expect("an address"));
    let clients: usize = lines[2].parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let mut connections = Vec::new();
            for server in &servers {
                connections.push(crate::outgoing::connect(server).await.expect("a connection"));
            }
            tasks.push(tokio::spawn(async move {
                loop {
                    for connection in &mut connections {
                        if let Ok(line) = wait_once(connection).await {
                            return line;
                        }
                    }
                }
            }));
        }
        for task in tasks {
            say(&task.await.expect("a task"));
        }
    });
}

async fn wait_once(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    let mut pipe = redis::pipe();
    pipe.cmd("TIME").add_command(command("RL.GCRA key 500 1 BURST 1 BLOCK 1d")).cmd("TIME");
    let (before, row, after): ((i64, i64), [i64; 5], (i64, i64)) = pipe.query_async(connection).await?;
    Ok(format!("{} {} {}", row[0], before.0 * 1_000_000 + before.1, after.0 * 1_000_000 + after.1))
}
