//! A replica that goes on to serve reads while it loads a copy from its primary (`repl-diskless-load swapdb`). Servers do so only if
//! all modules have declared that they can handle it.

use std::collections::HashMap;

use redis::{Connection, Value};
use support::{call, command, error, held, info, limit, wait_for, Held, Server};

/// A primary and a replica that has its keys. A copy of the keys takes long, except for the first one.
fn primary_and_replica(options: &[&str]) -> (Server, Server) {
    let primary = Server::on_port(&["--repl-diskless-sync", "yes", "--repl-backlog-size", "16kb", "--rdbcompression", "no"]);
    let address = format!("127.0.0.1 {}", primary.port);
    let own = ["--replicaof", &address, "--repl-diskless-load", "swapdb", "--loading-process-events-interval-bytes", "1024"];
    let mut client = primary.client();
    call::<()>(&mut client, "DEBUG POPULATE 600 filler 20000");
    let replica = Server::on_port(&[&own[..], options].concat());
    replica.wait_until_linked();
    (primary, replica)
}

/// Makes the replica load all keys again from the same primary, which takes two seconds or more. Waits until it is loading.
fn load_again(primary: &Server, replica: &Server, meanwhile: &str) {
    let mut client = primary.client();
    call::<()>(&mut client, "CONFIG SET rdb-key-save-delay 5000");
    // The replica cannot resume, since the backlog does not have what it has missed.
    let mut transaction = redis::pipe();
    transaction.atomic().cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).add_command(command(meanwhile));
    transaction.cmd("SET").arg("filler").arg("-".repeat(100_000));
    transaction.query::<Value>(&mut client).expect("a transaction");
    let mut client = replica.client();
    wait_for("the load", || info(&mut client, "persistence", "async_loading") == 1);
}

fn is_loading(client: &mut Connection) -> bool {
    info(client, "persistence", "async_loading") == 1
}

fn used(client: &mut Connection, key: &str) -> Value {
    call::<HashMap<String, Value>>(client, &format!("RL.INSPECT {key}"))["used"].clone()
}

#[test]
fn reads_go_on_during_a_load() {
    let (primary, replica) = primary_and_replica(&[]);
    let (mut left, mut right) = (primary.client(), replica.client());
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET"] {
        limit(&mut left, &format!("RL.{name} {name} 9 1d COST 2"));
    }
    wait_for("the replica", || limit(&mut right, "RL.PEEK BUCKET BUCKET 9 1d")[2] == 7);
    load_again(&primary, &replica, "RL.FIXED FIXED 9 1d");
    // These grants are not in the copy: the replica gets them as effects, after it has loaded.
    for name in ["SLIDE", "GCRA", "BUCKET"] {
        limit(&mut left, &format!("RL.{name} {name} 9 1d"));
    }
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET"] {
        // The former state, as long as the replica has no other.
        assert_eq!(limit(&mut right, &format!("RL.PEEK {name} {name} 9 1d"))[..3], [1, 9, 7], "{name}");
        assert_eq!(used(&mut right, name), Value::Int(2), "{name}");
        let refusal = error(&mut right, &command(&format!("RL.{name} {name} 9 1d")));
        assert!(refusal.starts_with("READONLY"), "{refusal}");
    }
    assert!(is_loading(&mut right));
    call::<()>(&mut left, "CONFIG SET rdb-key-save-delay 0");
    replica.wait_until_linked();
    for name in ["FIXED", "SLIDE", "GCRA", "BUCKET"] {
        wait_for(name, || limit(&mut right, &format!("RL.PEEK {name} {name} 9 1d"))[2] == 6);
        assert_eq!(used(&mut right, name), Value::Int(3), "{name}");
    }
}

#[test]
fn waiting_clients_notice_that_all_keys_were_exchanged() {
    let (primary, replica) = primary_and_replica(&["--replica-read-only", "no"]);
    let (mut left, mut right) = (primary.client(), replica.client());
    limit(&mut left, "RL.GCRA key 1 12h");
    wait_for("the replica", || call(&mut right, "EXISTS key"));
    let waiter = Held::send(&replica, "RL.GCRA key 1 12h BLOCK 1d");
    load_again(&primary, &replica, "DEL key");
    // A client that comes while the replica loads waits as well.
    let second = Held::send(&replica, "RL.GCRA key 1 12h BLOCK 1d");
    assert_eq!(held(&mut right), 2);
    assert!(is_loading(&mut right));
    call::<()>(&mut left, "CONFIG SET rdb-key-save-delay 0");
    assert_eq!(waiter.row()[0], 1);
    // The second one goes on to wait for the unit that the first one has got.
    assert_eq!(held(&mut right), 1);
    drop(second);
}
