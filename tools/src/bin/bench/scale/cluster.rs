//! What a call costs on a node of a cluster, beside a server alone: its CPU time.

use serde::{Deserialize, Serialize};
use support::{call, wait_for, Server};
use tools::load::{cpu, each_key, own, Shape};
use tools::statistics::median;

use crate::scale::Size;

/// The figures of this part.
#[derive(Serialize, Deserialize)]
pub struct Section {
    pub rounds: usize,
    pub rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    /// The CPU time for a call, in microseconds: the median over the rounds, for `SET` and for `RL.GCRA`.
    pub set_us: f64,
    pub gcra_us: f64,
}

/// A cluster of one node.
fn node() -> Server {
    let (server, mut client) = Server::node().and_client();
    call::<String>(&mut client, "CLUSTER ADDSLOTSRANGE 0 16383");
    wait_for("the node to have all slots", || {
        let state: String = call(&mut client, "CLUSTER INFO");
        state.contains("cluster_state:ok")
    });
    server
}

/// The CPU time of a call, in microseconds, on keys that were prepared by another one.
fn cost(server: &Server, prepare: &str, words: &str, size: &Size) -> f64 {
    let calls = (500_000.0 * size.load) as u64;
    let shape = Shape { keys: size.keys.min(100_000), pipeline: 16 };
    each_key(&server.socket(), prepare, 0..shape.keys);
    let mut client = server.client();
    let before = cpu(&mut client);
    own(&server.socket(), words, shape, calls);
    (cpu(&mut client) - before).as_secs_f64() * 1e6 / calls as f64
}

pub fn measure(size: &Size) -> Section {
    let names = ["a server alone", "a node of a cluster"];
    let mut costs = names.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..size.rounds {
        for (server, (set, gcra)) in [Server::start(), node()].iter().zip(&mut costs) {
            let words = "SET s# 0123456789012345678901234567 EX 86400";
            set.push(cost(server, words, words, size));
            gcra.push(cost(server, "RL.GCRA # 1000000 1d COST 500000", "RL.GCRA # 1000000 1d", size));
        }
    }
    let rows = names.iter().zip(costs).map(|(name, (set, gcra))| Row {
        name: (*name).into(),
        set_us: median(set),
        gcra_us: median(gcra),
    });
    Section { rounds: size.rounds, rows: rows.collect() }
}
