//! What a call costs on a node of a cluster, beside a server alone. The nodes run on one machine, so the figure is the CPU time of
//! each node, and not the calls a second of all.

use std::thread::scope;

use redis::Connection;
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
    /// The CPU time of a node for a call, in microseconds: the median over the rounds and nodes, for `SET` and for `RL.GCRA`.
    pub set_us: f64,
    pub gcra_us: f64,
    /// The calls of `RL.GCRA` of the node with the most, relative to the one with the fewest, in the same CPU time.
    pub spread: f64,
}

const NODES: usize = 3;

fn tag(client: &mut Connection, slots: std::ops::Range<u64>) -> String {
    let tags = (0..).map(|nth| format!("t{nth:03}"));
    let mut at = |tag: &String| slots.contains(&call::<u64>(client, &format!("CLUSTER KEYSLOT {{{tag}}}")));
    tags.into_iter().find(|tag| at(tag)).expect("a tag")
}

/// The slots of the nth of some nodes.
fn slots(nth: usize, of: usize) -> std::ops::Range<u64> {
    let bound = |nth: usize| (16_384 * nth / of) as u64;
    bound(nth)..bound(nth + 1)
}

/// The servers, with the beginning of the names of their keys.
fn start(nodes: Option<usize>) -> Vec<(Server, String)> {
    let Some(nodes) = nodes else { return vec![(Server::start(), "t000".into())] };
    let servers: Vec<Server> = (0..nodes).map(|_| Server::node()).collect();
    let mut named = Vec::new();
    for (nth, server) in servers.into_iter().enumerate() {
        let mut client = server.client();
        let range = slots(nth, nodes);
        call::<String>(&mut client, &format!("CLUSTER ADDSLOTSRANGE {} {}", range.start, range.end - 1));
        let tag = tag(&mut client, range);
        named.push((server, tag));
    }
    // A node that is asked to meet another one listens on a port for that, which is not the default one.
    let bus = |server: &Server| -> String {
        let nodes: String = call(&mut server.client(), "CLUSTER NODES");
        let address = nodes.split(' ').nth(1).expect("an address");
        let (_, after) = address.split_once('@').expect("a port");
        after.split(',').next().expect("a port").into()
    };
    let mut first = named[0].0.client();
    for (server, _) in &named[1..] {
        call::<String>(&mut first, &format!("CLUSTER MEET 127.0.0.1 {} {}", server.port, bus(server)));
    }
    for (server, _) in &named {
        let mut client = server.client();
        wait_for("the nodes to know each other", || {
            let state: String = call(&mut client, "CLUSTER INFO");
            state.contains("cluster_state:ok") && state.contains("cluster_slots_ok:16384")
        });
    }
    named
}

/// The CPU time of each node for a call, in microseconds. All nodes have calls at the same time.
fn cost(servers: &[(Server, String)], words: &str, size: &Size) -> Vec<f64> {
    let calls = (500_000.0 * size.load) as u64;
    let shape = Shape { keys: size.keys.min(100_000), pipeline: 16 };
    scope(|scope| {
        let run = |(server, tag): &(Server, String)| {
            let (words, socket, mut client) = (words.replace("tag", tag), server.socket(), server.client());
            scope.spawn(move || {
                let before = cpu(&mut client);
                own(&socket, &words, shape, calls);
                (cpu(&mut client) - before).as_secs_f64() * 1e6 / calls as f64
            })
        };
        let running: Vec<_> = servers.iter().map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("a load")).collect()
    })
}

pub fn measure(size: &Size) -> Section {
    let cases: [(&str, Option<usize>); 3] =
        [("a server alone", None), ("a cluster of one node", Some(1)), ("each node of a cluster of three", Some(NODES))];
    let mut costs = cases.map(|_| (Vec::new(), Vec::new(), Vec::new()));
    for _ in 0..size.rounds {
        for ((_, nodes), (set, gcra, spread)) in cases.iter().zip(&mut costs) {
            let servers = start(*nodes);
            for (server, tag) in &servers {
                let keys = size.keys.min(100_000);
                each_key(&server.socket(), &format!("RL.GCRA {{{tag}}}:# 1000000 1d COST 500000"), 0..keys);
                each_key(&server.socket(), &format!("SET {{{tag}}}:s# 0123456789012345678901234567 EX 86400"), 0..keys);
            }
            set.extend(cost(&servers, "SET {tag}:s# 0123456789012345678901234567 EX 86400", size));
            let of_nodes = cost(&servers, "RL.GCRA {tag}:# 1000000 1d", size);
            let (least, most) = of_nodes.iter().fold((f64::MAX, 0.0_f64), |(low, high), &us| (low.min(us), high.max(us)));
            spread.push(most / least);
            gcra.extend(of_nodes);
        }
    }
    let rows = cases.iter().zip(costs).map(|((name, _), (set, gcra, spread))| Row {
        name: (*name).into(),
        set_us: median(set),
        gcra_us: median(gcra),
        spread: median(spread),
    });
    Section { rounds: size.rounds, rows: rows.collect() }
}
