//! The cases: which calls are measured, and how their keys are prepared.

use redis::Value;

use crate::benchmarks::peers::Peers;
use tools::load;

/// The case that most other cases are compared with.
pub const SET: &str = "SET key value EX 60";
/// The same call, made by the load generator that can send `MULTI`.
pub const SET_OWN: &str = "SET key value EX 60, by our own loop";

/// What calls on new keys are compared with.
pub const SET_NEW: &str = "SET key value PX 86400000";

/// How many cases a scene has. Only the widest scenes have all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// A few cases: for scenes without a pipeline, with an append-only file, or with a replica.
    Narrow,
    /// The cases that are measured on every server.
    Medium,
    Wide,
}

/// What a case needs besides the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Module,
    RedisCell,
    Script(&'static str),
}

pub struct Case {
    pub name: &'static str,
    pub width: Width,
    pub needs: Needs,
    /// The call that prepares each key; `#` stands for the key.
    pub prepare: &'static str,
    pub call: &'static str,
    /// Whether the first integer of a reply is as it must be, before the measurement and after it: granted, or denied.
    pub expects: Option<fn(i64) -> bool>,
    /// Whether a call changes its key.
    pub writes: bool,
    /// `MULTI`, and several calls that count as one: redis-benchmark can't send them.
    pub own_loop: bool,
    /// The case that it is compared with.
    pub base: &'static str,
}

const BASE: Case = Case {
    name: "",
    width: Width::Wide,
    needs: Needs::Nothing,
    prepare: "",
    call: "",
    expects: None,
    writes: true,
    own_loop: false,
    base: SET,
};

impl Case {
    /// A case of this kind: its name, the call that prepares each key, and the call.
    const fn of(self, name: &'static str, prepare: &'static str, call: &'static str) -> Self {
        Self { name, prepare, call, ..self }
    }
}

/// The module replies with the units that it has granted. Others reply 0 for a grant, or 1.
const GRANT: Case = Case { expects: Some(|units| units > 0), needs: Needs::Module, width: Width::Narrow, ..BASE };
const OPTION: Case = Case { width: Width::Wide, ..GRANT };
const READ: Case = Case { writes: false, ..OPTION };
const DENIAL: Case =
    Case { expects: Some(|units| units == 0), needs: Needs::Module, width: Width::Medium, writes: false, ..BASE };
const CELL: Case = Case { expects: Some(|limited| limited == 0), needs: Needs::RedisCell, ..GRANT };
const LUA: Case = Case { expects: Some(|limited| limited == 0), ..BASE };
const VERDICT: Case = Case { expects: Some(|granted| granted == 1), ..BASE };
const PAIR: Case = Case { own_loop: true, needs: Needs::Module, base: SET_OWN, ..BASE };

/// Grants of meters use keys with a limit that is never reached, and with so much used that they live for hours: no call
/// creates its key. The use is low enough for a record of the usual size. Logs grow as long as the load makes them, up to
/// 1000 entries.
pub const CASES: &[Case] = &[
    Case { name: SET, width: Width::Narrow, call: "SET key:# 0123456789012345678901234567 EX 60", ..BASE },
    Case {
        name: "GET",
        width: Width::Medium,
        prepare: "SET key:# 0123456789012345678901234567",
        call: "GET key:#",
        writes: false,
        ..BASE
    },
    Case { name: "INCR", width: Width::Narrow, call: "INCR key:#", ..BASE },
    GRANT.of("RL.FIXED, granted", "RL.FIXED key:# %many 1d COST %tenth", "RL.FIXED key:# %many 1d"),
    GRANT.of("RL.GCRA, granted", "RL.GCRA key:# %many 1d COST %tenth", "RL.GCRA key:# %many 1d"),
    GRANT.of("RL.BUCKET, granted", "RL.BUCKET key:# %many 1d COST %tenth", "RL.BUCKET key:# %many 1d"),
    GRANT.of("RL.SLIDE, limit 1000, granted", "", "RL.SLIDE key:# %slide"),
    DENIAL.of("RL.FIXED, denied", "RL.FIXED key:# 10 1d COST 10", "RL.FIXED key:# 10 1d"),
    DENIAL.of("RL.GCRA, denied", "RL.GCRA key:# 10 1d COST 10", "RL.GCRA key:# 10 1d"),
    DENIAL.of("RL.BUCKET, denied", "RL.BUCKET key:# 10 1d COST 10", "RL.BUCKET key:# 10 1d"),
    DENIAL.of("RL.SLIDE, denied", "RL.SLIDE key:# 10 1d COST 10", "RL.SLIDE key:# 10 1d"),
    READ.of("RL.PEEK GCRA", "RL.GCRA key:# %many 1d COST %tenth", "RL.PEEK GCRA key:# %many 1d"),
    OPTION.of("RL.GCRA .. BLOCK 5, granted at once", "RL.GCRA key:# %many 1d COST %tenth", "RL.GCRA key:# %many 1d BLOCK 5"),
    OPTION.of(
        "RL.ALL of GCRA and FIXED, granted",
        "RL.ALL 2 one:# two:# GCRA %many 1d COST %tenth FIXED %many 1d COST %tenth",
        "RL.ALL 2 one:# two:# GCRA %many 1d FIXED %many 1d",
    ),
    CELL.of("redis-cell, granted", "CL.THROTTLE key:# %burst %many 86400 %tenth", "CL.THROTTLE key:# %burst %many 86400"),
    Case {
        name: "redis-cell, denied",
        width: Width::Wide,
        prepare: "CL.THROTTLE key:# 9 10 86400 10",
        call: "CL.THROTTLE key:# 9 10 86400",
        expects: Some(|limited| limited == 1),
        ..CELL
    },
    Case {
        name: "throttled-py, GCRA (Lua)",
        width: Width::Narrow,
        needs: Needs::Script("throttled/gcra"),
        prepare: "EVALSHA %sha 1 throttled:v1:gcra:# %interval %many %tenth",
        call: "EVALSHA %sha 1 throttled:v1:gcra:# %interval %many 1",
        ..LUA
    },
    Case {
        name: "throttled-py, sliding window (Lua)",
        needs: Needs::Script("throttled/sliding_window"),
        call: "EVALSHA %sha 2 throttled:v1:sliding_window:#:period:%window throttled:v1:sliding_window:#:period:%previous \
               60 %limit 1 %now_ms",
        ..LUA
    },
    Case {
        name: "limits, sliding window counter (Lua)",
        needs: Needs::Script("limits/acquire_sliding_window"),
        call: "EVALSHA %sha 2 LIMITS:{LIMITER/#/1000/1/minute}/-1 LIMITS:{LIMITER/#/1000/1/minute} %limit 60 1",
        ..VERDICT
    },
    Case {
        name: "limits, moving window (Lua)",
        needs: Needs::Script("limits/acquire_moving_window"),
        call: "EVALSHA %sha 1 LIMITS:LIMITER/#/1000/1/minute %now_s %limit 60 1",
        ..VERDICT
    },
    Case {
        name: "a sorted set (Lua)",
        width: Width::Medium,
        needs: Needs::Script("sorted-set"),
        call: "EVALSHA %sha 1 key:# %sorted_us 1000",
        ..LUA
    },
    Case {
        name: "limits, fixed window (Lua)",
        needs: Needs::Script("limits/incr_expire"),
        call: "EVALSHA %sha 1 LIMITS:LIMITER/#/1000/1/day 86400 1",
        ..BASE
    },
    Case { name: SET_OWN, call: "SET key:# 0123456789012345678901234567 EX 60", needs: Needs::Nothing, ..PAIR },
    Case {
        name: "MULTI, INCR, EXPIRE, EXEC",
        needs: Needs::Nothing,
        call: "MULTI ; INCR key:# ; EXPIRE key:# 60 ; EXEC",
        ..PAIR
    },
];

/// Calls with ids, and what is used instead of leases. A take and its release count as one call. Five other holders have units of
/// each key.
pub const IDS: &[Case] = &[
    Case { needs: Needs::Nothing, name: SET_OWN, call: "SET key:# 0123456789012345678901234567 EX 60", ..PAIR },
    Case {
        name: "RL.GCRA, granted",
        prepare: "RL.GCRA key:# %many 1d COST %tenth",
        call: "RL.GCRA key:# %many 1d",
        expects: GRANT.expects,
        ..PAIR
    },
    PAIR.of("RL.GCRA .. ID, granted", "RL.GCRA key:# %many 1d COST %tenth", "RL.GCRA key:# %many 1d ID @"),
    PAIR.of(
        "RL.GCRA .. ID, then RL.SETTLE",
        "RL.GCRA key:# %many 1d COST %tenth",
        "RL.GCRA key:# %many 1d COST 2 ID @ ; RL.SETTLE key:# @ 1",
    ),
    PAIR.of(
        "RL.LEASE, then RL.RELEASE",
        "RL.LEASE key:# 1000 1d ID a ; RL.LEASE key:# 1000 1d ID b ; RL.LEASE key:# 1000 1d ID c ; \
                  RL.LEASE key:# 1000 1d ID d ; RL.LEASE key:# 1000 1d ID e",
        "RL.LEASE key:# 1000 1d ID @ ; RL.RELEASE key:# @",
    ),
    Case {
        name: "a semaphore in a sorted set: a script (Lua), then ZREM",
        needs: Needs::Script("semaphore"),
        prepare: "ZADD key:# 9000000000000000 a 9000000000000000 b 9000000000000000 c 9000000000000000 d 9000000000000000 e",
        call: "EVALSHA %sha 1 key:# @ 86400000000 1000 ; ZREM key:# @",
        ..PAIR
    },
    Case {
        name: "a lock for one: SET .. NX EX, then DEL",
        needs: Needs::Nothing,
        call: "SET key:# @ NX EX 86400 ; DEL key:#",
        ..PAIR
    },
];

const NEW: Case = Case { base: SET_NEW, ..GRANT };

/// First calls: each call has a new key.
pub const FIRST: &[Case] = &[
    Case {
        name: SET_NEW,
        needs: Needs::Nothing,
        call: "SET key:# 0123456789012345678901234567 PX 86400000",
        expects: None,
        ..NEW
    },
    NEW.of("RL.FIXED, granted", "", "RL.FIXED key:# 1000 1d"),
    NEW.of("RL.GCRA, granted", "", "RL.GCRA key:# 1000 1d"),
    NEW.of("RL.BUCKET, granted", "", "RL.BUCKET key:# 1000 1d"),
    NEW.of("RL.SLIDE, limit 1000, granted", "", "RL.SLIDE key:# 1000 1d"),
    Case { name: "redis-cell, granted", call: "CL.THROTTLE key:# 999 1000 86400", base: SET_NEW, ..CELL },
];

impl Case {
    /// The options of its server, which loads a module besides redis-rl if the case needs it.
    pub fn options<'a>(&self, peers: &'a Peers) -> Vec<&'a str> {
        match self.needs {
            Needs::RedisCell => vec!["--loadmodule", peers.redis_cell.to_str().expect("a path")],
            _ => Vec::new(),
        }
    }

    /// Replaces all placeholders in a call but that of the key, as a client would now.
    pub fn fill(words: &str, keys: u64, sha: &str) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
        let window = now.as_secs() / 60;
        let hot = keys == 1;
        // The hot key gets all calls, so its limit is one that they never reach. Of many keys, each gets a few calls.
        let many = if hot { 1_000_000_000 } else { 10_000 };
        words
            .replace("%sha", sha)
            .replace("%many", &many.to_string())
            .replace("%burst", &(many - 1).to_string())
            .replace("%tenth", &(many / 10).to_string())
            .replace("%interval", &(86_400.0 / f64::from(many)).to_string())
            .replace("%now_ms", &now.as_millis().to_string())
            .replace("%now_s", &now.as_secs_f64().to_string())
            .replace("%window", &window.to_string())
            .replace("%previous", &(window - 1).to_string())
            // The hot key gets far more calls than 1000 a minute. Exact windows get so short a period that they hold about
            // 1000 calls. Scripts that know whole seconds only get a limit that is never reached.
            .replace("%slide", if hot { "2000 1ms" } else { "1000 60" })
            .replace("%sorted_us", if hot { "10000" } else { "60000000" })
            .replace("%limit", if hot { "1000000000" } else { "1000" })
    }

    /// Whether a reply is as it must be.
    pub fn allows(&self, reply: &Value) -> bool {
        let first = if let Value::Array(row) = reply { row.first() } else { Some(reply) };
        match (self.expects, first) {
            (None, _) => true,
            (Some(expects), Some(Value::Int(number))) => expects(*number),
            (Some(expects), Some(Value::Nil)) => expects(0),
            _ => false,
        }
    }

    /// The least and the most changes of keys that the server may count per call. The number is unknown for redis-cell, which
    /// writes without the server counting it.
    pub fn changes(&self) -> std::ops::RangeInclusive<f64> {
        match self.needs {
            Needs::RedisCell => 0.0..=0.0,
            _ if !self.writes => 0.0..=0.001,
            // A transaction has one change at least. Of several other calls, each has one.
            _ if self.call.starts_with("MULTI") => 0.999..=f64::MAX,
            _ => 0.999 * self.call.split(" ; ").count() as f64..=f64::MAX,
        }
    }

    pub fn first_key(words: &str) -> String {
        words.replace(load::KEY, "000000000000")
    }
}
