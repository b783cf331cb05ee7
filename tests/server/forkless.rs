//! Saves without a fork, as Valkey 9.2 makes them: a thread of the server reads keys meanwhile. A module stands in for that server
//! (`tests/support/forkless.c`): it refuses to open keys, and ends the server at an access that Valkey would not survive.

use std::thread::sleep;
use std::time::Duration;

use redis::Connection;
use support::witness::build;
use support::{call, command, error, held, info, inspect, limit, server_program, snapshots, wait_for};
use support::{Held, Load, Server, Snapshots};
use tempfile::TempDir;

/// Starts the server to test on, with the module behind the stand-in. The server reports this name.
fn server(name: &str) -> (TempDir, Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let (stand_in, module) = (build("forkless", folder.path()), support::module());
    let (stand_in, module) = (stand_in.display().to_string(), module.display().to_string());
    let options = ["--loadmodule", &stand_in, name, &module, "compat", "cl.throttle", "gcra"];
    (folder, Server::of(&server_program(), false, &options))
}

const IN_USE: &str = "TRYAGAIN the server is saving the key: repeat the call";

/// Panics unless each change was announced to the server.
fn assert_announced(client: &mut Connection) {
    assert_eq!(call::<i64>(client, "FORKLESS.UNANNOUNCED"), 0);
}

#[test]
fn the_option_is_declared_to_valkey_only() {
    for (name, expected) in [("valkey", true), ("redis", false)] {
        let (_folder, server) = server(name);
        let options: i64 = call(&mut server.client(), "FORKLESS.OPTIONS");
        assert_eq!(options & 1 << 6 != 0, expected, "{name}: {options}");
        // Those that all servers know: no implicit signals, and loading while reads go on.
        assert_eq!(options & 0b1111, 0b0110, "{name}: {options}");
    }
}

#[test]
fn a_command_is_refused_while_its_key_is_being_saved_and_changes_nothing() {
    let (_folder, server) = server("valkey");
    let mut client = server.client();
    for words in
        ["RL.FIXED f 5 1d ID a", "RL.SLIDE s 5 1d ID a", "RL.GCRA g 5 1d", "RL.BUCKET b 5 1d", "RL.LEASE l 5 1d ID a"]
    {
        call::<()>(&mut client, words);
    }
    let state = |client: &mut Connection| -> (Snapshots, String) { (snapshots(client), call(client, "INFO rl")) };
    let before = state(&mut client);
    call::<()>(&mut client, "FORKLESS.USE f s g b l missing");
    let calls = [
        "RL.FIXED f 5 1d ID a",
        "RL.SLIDE s 5 1d ID b",
        "RL.GCRA g 5 1d",
        "RL.GCRA g 5 1d COST 5 BLOCK 10",
        "RL.BUCKET b 5 1d UPTO 9",
        "RL.BUCKET b 5 1d FORCE 9",
        "RL.BUCKET b 5 1d REFUND 1",
        "RL.LEASE l 5 1d ID b",
        "RL.SETTLE f a 0",
        "RL.RELEASE l a",
        "RL.PEEK GCRA g 5 1d",
        "RL.PEEK LEASE l 5 1d",
        "RL.INSPECT s",
        "CL.THROTTLE g 4 5 86400",
        "CL.THROTTLE g 4 5 86400 0",
        "GCRA g 4 5 86400",
        "RL.ALL 2 g other GCRA 5 1d GCRA 5 1d",
        "EVAL return(redis.call('RL.GCRA',KEYS[1],5,60)) 1 g",
    ];
    for words in calls {
        let refused: i64 = call(&mut client, "FORKLESS.REFUSED");
        let reply = error(&mut client, &command(words));
        assert!(reply.starts_with(IN_USE), "{words}: {reply}");
        assert!(call::<i64>(&mut client, "FORKLESS.REFUSED") > refused, "{words}");
    }
    assert_eq!(state(&mut client), before);
    // A key that does not exist is not being saved.
    assert_eq!(limit(&mut client, "RL.GCRA missing 5 1d")[2], 4);
    call::<()>(&mut client, "FORKLESS.FREE");
    for words in calls {
        command(words).query::<redis::Value>(&mut client).unwrap_or_else(|error| panic!("{words}: {error}"));
    }
    assert_announced(&mut client);
}

#[test]
fn a_call_of_several_keys_charges_none_while_one_of_them_is_being_saved() {
    let (_folder, server) = server("valkey");
    let mut client = server.client();
    let words = "RL.ALL 3 {x}1 {x}2 {x}3 GCRA 5 1d FIXED 5 1d SLIDE 5 1d COST 2 ID call";
    for key in ["{x}1 5 1d", "{x}2 5 1d", "{x}3 5 1d"].iter().zip(["GCRA", "FIXED", "SLIDE"]) {
        call::<()>(&mut client, &format!("RL.{} {}", key.1, key.0));
    }
    for used in ["{x}1", "{x}2", "{x}3"] {
        let before = (snapshots(&mut client), call::<String>(&mut client, "INFO rl"));
        call::<()>(&mut client, &format!("FORKLESS.USE {used}"));
        assert!(error(&mut client, &command(words)).starts_with(IN_USE), "{used}");
        assert_eq!((snapshots(&mut client), call::<String>(&mut client, "INFO rl")), before, "{used}");
        call::<()>(&mut client, "FORKLESS.FREE");
    }
    let (granted, _, rows): support::AllRows = call(&mut client, words);
    assert_eq!((granted, rows[0][2], rows[1][2], rows[2][2]), (1, 3, 3, 2));
}

#[test]
fn a_line_waits_for_its_key_and_holds_up_no_other() {
    let (_folder, server) = server("valkey");
    let mut client = server.client();
    // A unit drains every 100 ms, and the key lives for long.
    limit(&mut client, "RL.BUCKET used 10 1 CAPACITY 1000 COST 1000");
    limit(&mut client, "RL.BUCKET other 10 1 CAPACITY 1000 COST 1000");
    let first = Held::send(&server, "RL.BUCKET used 10 1 CAPACITY 1000 BLOCK 30");
    let second = Held::send(&server, "RL.BUCKET used 10 1 CAPACITY 1000 BLOCK 30");
    let late = Held::send(&server, "RL.BUCKET used 10 1 CAPACITY 1000 COST 2 BLOCK 300ms");
    assert_eq!(held(&mut client), 3);
    call::<()>(&mut client, "FORKLESS.USE used");
    // The other line is served.
    for _ in 0..3 {
        assert_eq!(Held::send(&server, "RL.BUCKET other 10 1 CAPACITY 1000 BLOCK 30").row()[0], 1);
    }
    // The line of the key is asked again and again, also for the client whose wait has ended.
    let refused: i64 = call(&mut client, "FORKLESS.REFUSED");
    wait_for("more attempts", || call::<i64>(&mut client, "FORKLESS.REFUSED") >= refused + 20);
    assert_eq!(held(&mut client), 3);
    call::<()>(&mut client, "FORKLESS.FREE");
    assert_eq!(late.row()[0], 0);
    assert_eq!([first.row()[0], second.row()[0]], [1, 1]);
    assert_eq!((held(&mut client), info(&mut client, "rl", "rl_waiting_clients")), (0, 0));
    assert_announced(&mut client);
}

#[test]
fn a_waiting_call_of_several_keys_is_charged_on_none_while_one_is_being_saved() {
    let (_folder, server) = server("valkey");
    let mut client = server.client();
    let rules = "GCRA 1 100ms FIXED 5 1d SLIDE 5 1d";
    limit(&mut client, "RL.GCRA {x}1 1 100ms");
    limit(&mut client, "RL.FIXED {x}2 5 1d");
    limit(&mut client, "RL.SLIDE {x}3 5 1d");
    let mut waiter = Held::send(&server, &format!("RL.ALL 3 {{x}}1 {{x}}2 {{x}}3 {rules} BLOCK 30"));
    call::<()>(&mut client, "FORKLESS.USE {x}2");
    wait_for("attempts", || call::<i64>(&mut client, "FORKLESS.REFUSED") >= 5);
    let used = |client: &mut Connection, key: &str| inspect(client, key, "used").expect("a key");
    assert_eq!(used(&mut client, "{x}3"), 1);
    assert_eq!(held(&mut client), 1);
    call::<()>(&mut client, "FORKLESS.FREE");
    let (granted, ..): support::AllRows = waiter.answer().row.expect("a row");
    assert_eq!([granted, used(&mut client, "{x}2"), used(&mut client, "{x}3")], [1, 2, 2]);
    assert_announced(&mut client);
}

#[test]
fn under_load_nobody_is_forgotten_and_each_unit_is_charged_once() {
    let (_folder, server) = server("valkey");
    let mut client = server.client();
    call::<()>(&mut client, "FORKLESS.EACH 7");
    let load = Load::default();
    // Clients that wait on one of five keys, or on two of them. Each counts the units that it got from each key.
    let units = std::thread::scope(|scope| {
        let work = |worker: usize| {
            let mut client = server.client();
            let mut units = [0_i64; 5];
            let mut round = worker;
            let takes_two = !worker.is_multiple_of(2);
            while load.goes_on() {
                round += 1;
                let (one, two) = (round % 5, (round + 1 + worker % 4) % 5);
                let taken = if takes_two {
                    // The first rule makes the call wait, so that a timer charges it.
                    let pace = format!("RL.ALL 3 {{k}}pace:{worker} {{k}}{one} {{k}}{two} GCRA 1 5ms");
                    let words = format!("{pace} SLIDE 100000 1d SLIDE 100000 1d BLOCK 60");
                    command(&words).query::<support::AllRows>(&mut client).map(|(granted, ..)| granted)
                } else {
                    let words = format!("RL.SLIDE {{k}}{one} 100000 1d BLOCK 60");
                    command(&words).query::<[i64; 5]>(&mut client).map(|row| row[0])
                };
                match taken {
                    Ok(taken) => {
                        units[one] += taken;
                        units[two] += if takes_two { taken } else { 0 };
                    }
                    Err(error) => assert!(error.to_string().contains("saving the key"), "{error}"),
                }
            }
            units
        };
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(move || work(worker))).collect();
        let _end = load.ends_here();
        sleep(Duration::from_secs(2));
        load.end();
        workers.into_iter().fold([0; 5], |sum, worker| {
            let units = worker.join().expect("a worker");
            std::array::from_fn(|key| sum[key] + units[key])
        })
    });
    call::<()>(&mut client, "FORKLESS.EACH 0");
    assert!(call::<i64>(&mut client, "FORKLESS.REFUSED") > 100);
    assert!(info(&mut client, "rl", "rl_waits") > 50);
    for (key, units) in units.into_iter().enumerate() {
        let row = limit(&mut client, &format!("RL.PEEK SLIDE {{k}}{key} 100000 1d"));
        assert!(units > 0);
        assert_eq!(100_000 - row[2], units, "key {key}");
    }
    assert_eq!(held(&mut client), 0);
    assert_announced(&mut client);
}
