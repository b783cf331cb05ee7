//! What calls cost, compared with the server's own commands and with other rate limiters: `make bench` measures it.

pub mod cases;
mod clients;
mod ids;
mod memory;
mod peers;
pub mod report;
mod scale;
pub mod speed;

use std::cell::OnceCell;
use std::path::Path;

use serde::{Deserialize, Serialize};

use tools::results::Machine;

use crate::{figure, measure, Options};

/// The content of docs/benchmarks.json.
#[derive(Serialize, Deserialize)]
pub struct Results {
    machine: Machine,
    pub speed: speed::Section,
    memory: memory::Section,
    scale: scale::Section,
    ids: ids::Section,
    clients: clients::Section,
}

/// Measures the figures.
pub fn results(file: &Path, options: &Options) -> Results {
    // The client packages are not compared with other rate limiters, so they need no download.
    let installed = OnceCell::new();
    let peers = || installed.get_or_init(peers::install);
    // The parts that are short and least sensitive to other work on the machine come first.
    measure(
        file,
        &options.part,
        &[("machine", figure(Machine::this()))],
        &[
            ("memory", &|| figure(memory::measure(options, peers()))),
            ("scale", &|| figure(scale::measure(options))),
            ("speed", &|| figure(speed::measure(options, peers()))),
            ("ids", &|| figure(ids::measure(options, peers()))),
            ("clients", &|| figure(clients::measure(options))),
        ],
    )
}
