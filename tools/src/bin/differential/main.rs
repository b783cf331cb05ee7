//! Shows that two builds of the module behave the same: `make differential BASE=<commit>`.
//!
//! Two servers of the same program run, one with each build, and both see the same clock, which stands still until this tool
//! moves it. Both are sent the same random calls, and everything that clients and replicas can see is compared, byte for
//! byte: the replies, the stored values and their deadlines, the keyspace events, the replication stream and the append-only
//! file.

mod calls;
mod resp;
mod run;
mod servers;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use calls::Calls;
use run::Session;
use servers::{Arrival, Setup};
use tally::Tally;

/// Sends two builds of the module the same calls, and compares all that they do.
#[derive(Parser)]
struct Options {
    /// The module that is known to be right.
    #[arg(long)]
    base: PathBuf,
    /// The module at hand.
    #[arg(long)]
    new: PathBuf,
    /// The server that runs both.
    #[arg(long, default_value = "redis-server")]
    server: String,
    /// How many calls of the module to make.
    #[arg(long, default_value_t = 1_000_000)]
    calls: u64,
    /// By which the calls are made; by default the time.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves out RL.HELP and COMMAND DOCS, whose texts may have changed on purpose.
    #[arg(long)]
    without_texts: bool,
    /// For a base that stores ids or replicates in another form: compares RL.INSPECT of records with ids, and what replicas and
    /// append-only files make of the effects, instead of their bytes.
    #[arg(long)]
    without_bytes: bool,
}

/// The ways in which a pair of servers is set up, in turn.
const SETUPS: [Setup; 5] = [
    Setup { appends: false, replica: Arrival::First },
    Setup { appends: false, replica: Arrival::Never },
    Setup { appends: true, replica: Arrival::Never },
    Setup { appends: false, replica: Arrival::Middle },
    Setup { appends: true, replica: Arrival::First },
];

fn main() -> ExitCode {
    let options = Options::parse();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = options.seed.unwrap_or_else(now);
    // The servers run in folders of their own.
    let (base, new) = match (options.base.canonicalize(), options.new.canonicalize()) {
        (Ok(base), Ok(new)) => (base, new),
        (Err(error), _) | (_, Err(error)) => {
            println!("a module is missing: {error}");
            return ExitCode::from(2);
        }
    };
    println!("seed {seed}, {} calls", options.calls);
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut calls = Calls::new(seed);
    calls.texts = !options.without_texts;
    calls.bytes = !options.without_bytes;
    // Each setup has its turn at least once, and no session lasts long.
    let sessions = (options.calls / 100_000).max(1).next_multiple_of(SETUPS.len() as u64);
    for number in 0..sessions {
        let setup = SETUPS[number as usize % SETUPS.len()];
        let first_us = 1_700_000_000_000_000 + calls.below(1_000_000_000) as i64 * 1_000_003;
        let modules = [base.as_path(), new.as_path()];
        let begun = tally.calls;
        let session = Session::start(&options.server, modules, setup, first_us, &mut calls, &mut tally);
        let outcome = session.and_then(|mut session| session.run(options.calls / sessions));
        if let Err(difference) = outcome {
            println!("{difference}\n\nDIFFERENT: seed {seed}, session {number} ({setup:?}), after {} commands, {} calls of the module among them", tally.commands, tally.calls);
            return ExitCode::FAILURE;
        }
        println!(
            "session {number}: {} calls the same ({setup:?}), {:.0} s so far",
            tally.calls - begun,
            start.elapsed().as_secs_f64()
        );
    }
    tally.print();
    println!("THE SAME: seed {seed}, {} calls in {:.0} s", tally.calls, start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
