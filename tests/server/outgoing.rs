//! Outgoing calls of a fleet that must stay under a third party's quota: three processes, two thousand tasks in all, each on a
//! connection of its own, each with the one line that it takes. Nothing is dropped, nobody polls, and the quota is used up.
//!
//! The processes are this program, started again. When a call was let go is the server's own time.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use support::command;
use support::witness::Watched;

use crate::worker::{say, work_if_worker, Worker};

const PROCESSES: u64 = 3;
/// A third party's quota, and how many tasks call it at once: as many as a few of its windows let through.
const QUOTAS: [Quota; 4] = [
    Quota { limit: 200, period_ms: 1_000, tasks: 1_400 },
    Quota { limit: 50, period_ms: 1_000, tasks: 350 },
    Quota { limit: 100, period_ms: 5_000, tasks: 300 },
    Quota { limit: 1, period_ms: 1_000, tasks: 10 },
];

#[derive(Clone, Copy)]
struct Quota {
    limit: u64,
    period_ms: u64,
    tasks: u64,
}

#[test]
fn a_sliding_window_is_used_up_and_never_overrun() {
    check("outgoing::a_sliding_window_is_used_up_and_never_overrun", "RL.SLIDE", "", true);
}

#[test]
fn calls_go_out_evenly_spaced() {
    check("outgoing::calls_go_out_evenly_spaced", "RL.GCRA", "BURST 1", false);
}

/// Plays all quotas under the limiter, in the test with this name, and fails if a call failed or a quota was not kept.
fn check(test: &str, limiter: &str, options: &str, bursts: bool) {
    /// Both tests measure times and keep both cores busy: one runs after the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    work_if_worker(make_calls);
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let run = simulate(test, limiter, options, bursts);
    println!("{}", run.table);
    assert!(run.wrong.is_empty(), "{}", run.wrong.join("\n"));
}

// ---- A process of the fleet ----

/// `work`: the server's address, and then each call with the number of tasks that make it. Says when all are connected, and waits
/// for a line: the processes begin together. Then prints a line a call: which it
/// was, and when it was let go in microseconds by the server's clock, or the reply that did not.
fn make_calls(task: &str) {
    let mut lines = task.lines();
    let client = Client::open(lines.next().expect("an address")).expect("an address");
    let calls: Vec<(u64, &str)> = lines
        .map(|line| line.split_once(' ').expect("a number and a call"))
        .map(|(tasks, call)| (tasks.parse().expect("a number"), call))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // One connection after the other: a socket's backlog holds but a few.
        let mut ready = Vec::new();
        for (index, (number, call)) in calls.into_iter().enumerate() {
            for _ in 0..number {
                ready.push((index, connect(&client).await, call.to_owned()));
            }
        }
        say("ready");
        std::io::stdin().read_line(&mut String::new()).expect("a line");
        let tasks = ready
            .into_iter()
            .map(|(index, connection, call)| tokio::spawn(async move { (index, outgoing(connection, &call).await) }));
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            match task.await.expect("a task") {
                (index, Ok(at)) => say(&format!("{index} {at}")),
                (index, Err(error)) => say(&format!("{index} {error}")),
            }
        }
    });
}

/// One task: waits for its turn, and calls the third party.
async fn outgoing(connection: RedisResult<MultiplexedConnection>, call: &str) -> Result<u128, String> {
    let mut connection = connection.map_err(|error| error.to_string())?;
    let reply = redis::pipe().add_command(command(call)).cmd("TIME").query_async(&mut connection).await;
    let reply: RedisResult<(Vec<i64>, (u128, u128))> = reply;
    match reply {
        Ok((row, (seconds, us))) if row[0] == 1 => Ok(seconds * 1_000_000 + us),
        Ok((row, _)) => Err(format!("{row:?}")),
        Err(error) => Err(error.to_string()),
    }
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    // The client would give up by itself, long before the server does.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    client.get_multiplexed_async_connection_with_config(&patient).await
}

// ---- The fleet ----

/// What came of it.
#[derive(Default)]
struct Run {
    table: String,
    wrong: Vec<String>,
}

/// Plays all quotas at once. `bursts`: a whole window's worth may go out at the same moment.
fn simulate(test: &str, limiter: &str, options: &str, bursts: bool) -> Run {
    let server = Watched::with(&["--maxclients", "9000"]);
    let mut work = vec![format!("unix://{}", server.dir().join("server.sock").display())];
    for (index, quota) in QUOTAS.iter().enumerate() {
        let Quota { limit, period_ms, tasks } = quota;
        // The last process takes what is left over.
        work.push(format!("{} {limiter} partner-{index} {limit} {period_ms}ms {options} BLOCK 60", tasks / PROCESSES));
    }
    let mut fleet: Vec<_> = (0..PROCESSES)
        .map(|process| {
            let mut work = work.clone();
            if process == PROCESSES - 1 {
                for (line, quota) in work[1..].iter_mut().zip(QUOTAS) {
                    let (number, call) = line.split_once(' ').expect("a number and a call");
                    let number: u64 = number.parse().expect("a number");
                    *line = format!("{} {call}", number + quota.tasks % PROCESSES);
                }
            }
            Worker::start(test, &work.join("\n"))
        })
        .collect();
    for worker in &mut fleet {
        assert_eq!(worker.line().as_deref(), Some("ready"));
    }
    for worker in &mut fleet {
        worker.tell("go");
    }
    let mut seen: Vec<(Vec<u128>, Vec<String>)> = vec![Default::default(); QUOTAS.len()];
    for mut worker in fleet {
        while let Some(line) = worker.line() {
            let (index, what) = line.split_once(' ').expect("two words");
            let (succeeded, failed) = &mut seen[index.parse::<usize>().expect("a number")];
            match what.parse() {
                Ok(at) => succeeded.push(at),
                Err(_) => failed.push(what.into()),
            }
        }
        assert!(worker.wait().success());
    }

    let table = format!(
        "{limiter} {options}\n period  limit  processes  concurrency  succeeded  failed  mean interval  of the limit  most in a window\n"
    );
    let mut run = Run { table, ..Run::default() };
    for (quota, (times, failed)) in QUOTAS.iter().zip(&mut seen) {
        let Quota { limit, period_ms, tasks } = *quota;
        times.sort_unstable();
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            run.wrong.push(format!("{limit} per {period_ms} ms: nothing succeeded: {:?}", failed.first()));
            continue;
        };
        let span_us = (last - first).max(1);
        // Those that go out together at the start are no measure of the rate.
        let at_start = if bursts { limit } else { 1 };
        let ideal_us = u128::from((tasks - at_start) * period_ms * 1_000 / limit);
        let share = ideal_us as f64 / span_us as f64;
        // A grant may be late, and those after it are not: a window is shorter by as much as the server stood still at once, and by
        // ten milliseconds, for its timers and the replies.
        let (from, to) = (*first as i64, *last as i64);
        let stop_us = server.longest_stop_us(from, to) as u128;
        let window_us = u128::from(period_ms * 1_000).saturating_sub(stop_us + 10_000);
        let most = times.iter().enumerate().map(|(index, from)| times[index..].partition_point(|at| at - from < window_us));
        let most = most.max().unwrap_or(0) as u64;
        let _ = writeln!(
            run.table,
            "{:>7} {limit:>6} {PROCESSES:>10} {tasks:>12} {:>10} {:>7} {:>14} {:>13} {most:>17}",
            format!("{:?}", Duration::from_millis(period_ms)),
            times.len(),
            failed.len(),
            format!("{:.2} ms", span_us as f64 / 1_000.0 / (times.len() - 1) as f64),
            format!("{:.1} %", share * 100.0),
        );
        if times.len() as u64 != tasks || !failed.is_empty() {
            run.wrong.push(format!(
                "{limit} per {period_ms} ms: of {tasks}, {} succeeded; {:?}",
                times.len(),
                failed.first()
            ));
        }
        if most > limit {
            run.wrong.push(format!("{limit} per {period_ms} ms: {most} in {window_us} us"));
        }
        // Nor can it be faster than allowed as a whole, but for the lateness of the first.
        if share > 1.03 {
            run.wrong.push(format!("{limit} per {period_ms} ms: {share:.3} of the limit"));
        }
        // What flows in while the server stands still for long is lost; and a sliding window's calls count from their answers.
        let windows = if bursts { i64::try_from((tasks - at_start).div_ceil(limit)).expect("a few") } else { 0 };
        let lost_us = server.lost_us(from, to) + windows * stop_us as i64;
        if ideal_us as f64 / (span_us as f64 - lost_us as f64) < 0.97 {
            run.wrong.push(format!("{limit} per {period_ms} ms: {share:.3} of the limit"));
        }
    }
    run
}
