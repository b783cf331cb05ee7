//! Which users, scripts and servers may run which commands: ACL rules, scripts, servers that are out of memory, and renamed
//! commands.

use redis::{Connection, RedisResult, Value};
use support::{call, command, error, info, limit, Server, LIMITERS};

fn user(server: &Server, rights: &str) -> Connection {
    call::<()>(&mut server.client(), &format!("ACL SETUSER someone reset on >secret {rights}"));
    let mut client = server.client();
    call::<()>(&mut client, "AUTH someone secret");
    client
}

#[test]
fn key_patterns_bind_every_command() {
    let (server, mut owner) = Server::start().and_client();
    let mut client = user(&server, "~mine:* %R~shared:* +@all");
    for name in LIMITERS {
        assert_eq!(limit(&mut client, &format!("RL.{name} mine:{name} 10 1d"))[0], 1);
        assert_eq!(limit(&mut client, &format!("RL.PEEK {name} shared:{name} 10 1d"))[0], 1);
        for words in [
            format!("RL.{name} shared:{name} 10 1d"),
            format!("RL.{name} shared:{name} 10 1d REFUND 1"),
            format!("RL.{name} shared:{name} 10 1d RESERVE 10"),
            format!("RL.{name} other 10 1d BLOCK 10"),
            format!("RL.PEEK {name} other 10 1d"),
            format!("RL.ALL 1 other {name} 10 1d"),
            format!("RL.ALL 2 mine:{name} other {name} 10 1d {name} 10 1d"),
            format!("RL.ALL 2 mine:{name} shared:{name} {name} 10 1d {name} 10 1d"),
            "RL.INSPECT other".into(),
        ] {
            assert!(error(&mut client, &command(&words)).contains("NOPERM"), "{words}");
        }
    }
    call::<Value>(&mut client, "RL.INSPECT mine:GCRA");
    assert_eq!(call::<i64>(&mut owner, "DBSIZE"), 4, "a refused call writes nothing");
    // A script has the rights of the user who runs it.
    let mut script = redis::cmd("EVAL");
    script.arg("return redis.call('RL.GCRA', 'other', 10, 60)").arg(0);
    assert!(script.query::<Value>(&mut client).is_err());
}

#[test]
fn commands_are_allowed_by_name_and_category() {
    let server = Server::start();
    let mut client = user(&server, "~* +rl.gcra");
    assert_eq!(limit(&mut client, "RL.GCRA key 10 1d")[0], 1);
    for words in ["RL.SLIDE key 10 1d", "RL.PEEK GCRA key 10 1d", "RL.INSPECT key", "RL.ALL 1 key GCRA 10 1d"] {
        assert!(error(&mut client, &command(words)).contains("NOPERM"), "{words}");
    }
    // From 7.2 on, ACL categories contain commands of modules. Before that, a rule must name each command.
    let text: String = call(&mut server.client(), "INFO server");
    let version = text.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("a version");
    let by_category = !version.starts_with("7.0.");
    assert_eq!(by_category, call::<Vec<String>>(&mut server.client(), "ACL CAT write").contains(&"rl.gcra".into()));
    let rights = if by_category { "+@all -@write" } else { "+@all -rl.fixed -rl.slide -rl.gcra -rl.bucket -rl.all" };
    let mut client = user(&server, &format!("~* {rights}"));
    assert_eq!(limit(&mut client, "RL.PEEK GCRA key 10 1d")[0], 1);
    for name in LIMITERS {
        assert!(error(&mut client, &command(&format!("RL.{name} key 10 1d"))).contains("NOPERM"), "{name}");
    }
    assert!(error(&mut client, &command("RL.ALL 1 key GCRA 10 1d")).contains("NOPERM"));
}

#[test]
fn scripts_may_name_keys_that_they_did_not_declare_but_not_those_of_another_node() {
    let script = |keys: &str| format!("return redis.call('RL.GCRA', {keys}, 10, 86400)");
    let (_server, mut client) = Server::start().and_client();
    let reply: RedisResult<Vec<i64>> = redis::cmd("EVAL").arg(script("'undeclared'")).arg(0).query(&mut client);
    assert_eq!(reply.expect("a reply")[..3], [1, 10, 9]);
    assert!(call::<i64>(&mut client, "PTTL undeclared") > 0);

    let (_node, mut client) = Server::node().and_client();
    call::<()>(&mut client, "CLUSTER ADDSLOTSRANGE 0 8191");
    support::wait_for("the cluster", || call::<String>(&mut client, "CLUSTER INFO").contains("cluster_state:ok"));
    let slot = |client: &mut Connection, key: &str| call::<i64>(client, &format!("CLUSTER KEYSLOT {key}"));
    let here = (0..).map(|n| format!("key{n}")).find(|key| slot(&mut client, key) < 8_192).expect("a key");
    let there = (0..).map(|n| format!("key{n}")).find(|key| slot(&mut client, key) >= 8_192).expect("a key");
    let mut eval = |script: String| redis::cmd("EVAL").arg(script).arg(1).arg(&here).query::<Value>(&mut client);
    eval(script("KEYS[1]")).expect("a reply");
    assert!(eval(script(&format!("'{there}'"))).is_err());
}

/// Fills the server's memory until a write is refused or keys are evicted.
fn fill(client: &mut Connection, prefix: &str) -> bool {
    let limit: i64 = call::<Vec<String>>(client, "CONFIG GET maxmemory")[1].parse().expect("a number");
    for round in 0..2_000 {
        let written: RedisResult<Value> =
            redis::cmd("SET").arg(format!("{prefix}{round}")).arg(vec![b'x'; 10_000]).query(client);
        if written.is_err() || info(client, "stats", "evicted_keys") > 0 {
            return written.is_err();
        }
    }
    panic!("{limit} bytes are not used up")
}

#[test]
fn a_full_server_refuses_or_evicts_by_its_policy() {
    for policy in [
        "noeviction",
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ] {
        let (mut server, mut client) = Server::with(&["--maxmemory-policy", policy]).and_client();
        // Limiters of all sizes and ages, which have no units left.
        for index in 0..50 {
            for name in LIMITERS {
                limit(&mut client, &format!("RL.{name} {name}:{index} 10 {}d COST 10", index + 1));
            }
        }
        let used = info(&mut client, "memory", "used_memory");
        call::<()>(&mut client, &format!("CONFIG SET maxmemory {}", used + 2_000_000));
        let refused = fill(&mut client, "plain:");
        let volatile = policy.starts_with("volatile");
        assert_eq!(refused, policy == "noeviction", "{policy}");
        if refused {
            call::<()>(&mut client, "CONFIG SET maxmemory 1");
            for name in LIMITERS {
                for words in ["COST 1", "REFUND 1", "FORCE 1", "BLOCK 1", "RESERVE 1"] {
                    let text = error(&mut client, &command(&format!("RL.{name} {name}:1 10 1d {words}")));
                    assert!(text.contains("OOM"), "{words}: {text}");
                }
                assert_eq!(limit(&mut client, &format!("RL.PEEK {name} {name}:1 10 2d"))[..3], [0, 10, 0]);
            }
            assert_eq!(info(&mut client, "stats", "evicted_keys"), 0);
        }
        call::<()>(&mut client, "CONFIG SET maxmemory 0");
        // Each limiter either is unchanged, or is gone and counts from zero. None is damaged or without a deadline.
        let mut gone = 0;
        for index in 0..50 {
            for name in LIMITERS {
                let key = format!("{name}:{index}");
                let missing = call::<i64>(&mut client, &format!("PTTL {key}")) < 0;
                let peek = limit(&mut client, &format!("RL.PEEK {name} {key} 10 {}d", index + 1));
                assert_eq!(peek[0], i64::from(missing), "{policy}: {key}");
                gone += i64::from(missing);
            }
        }
        let plain = call::<Vec<String>>(&mut client, "KEYS plain:*").len() as i64;
        if volatile {
            // Only keys with a deadline are evicted, which the limiters are.
            assert_eq!(gone, info(&mut client, "stats", "evicted_keys"), "{policy}");
            if policy == "volatile-ttl" {
                assert!(
                    limit(&mut client, "RL.PEEK SLIDE SLIDE:49 10 50d")[0] == 0,
                    "keys with the latest deadlines are evicted last"
                );
            }
        }
        assert!(refused || plain > 0);
        // In both cases, the server goes on to work.
        for name in LIMITERS {
            assert_eq!(limit(&mut client, &format!("RL.{name} new:{name} 10 1d"))[..2], [1, 10], "{policy}");
            assert!(call::<i64>(&mut client, &format!("PTTL new:{name}")) > 0);
        }
        assert!(server.is_alive());
    }
}

#[test]
fn the_module_does_not_load_without_the_commands_of_its_effects() {
    for hidden in ["SET", "SETRANGE", "PEXPIREAT", "DEL"] {
        let log = Server::refusing(&["--rename-command", hidden, ""]);
        let expected = format!("redis-rl needs the command {hidden}, which this server has renamed or disabled");
        assert!(log.contains(&expected), "{log}");
    }
}
