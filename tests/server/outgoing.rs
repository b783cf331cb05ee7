//! Outgoing calls of a fleet that must keep a third party's quota: three processes, two thousand tasks in all, each on a
//! connection of its own. Each task needs just one command. No call fails, no client polls, and the quota is used up.
//!
//! The three processes are workers of the test. The time of a call is the server's own.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use support::command;
use support::witness::Watched;

use crate::harness::{say, work_if_worker, Worker};

const PROCESSES: u64 = 3;
/// A third party's quota, and how many tasks call at once: enough for a few windows.
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

/// Plays all quotas with this limiter. Panics if a call failed or a quota was not kept. `test` is the name of the test that
/// runs this.
fn check(test: &str, limiter: &str, options: &str, bursts: bool) {
    /// Both tests measure times and keep both cores busy, so they run one after the other.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    work_if_worker(make_calls);
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let run = simulate(test, limiter, options, bursts);
    println!("{}", run.table);
    assert!(run.wrong.is_empty(), "{}", run.wrong.join("\n"));
}

// ---- A worker process ----

/// In a worker process: connects all tasks, says so, and waits for a line, so that all workers begin at the same time. Then
/// says for each call which line of `task` it belongs to, and the time of its grant in microseconds by the server's clock,
/// or its error. The first line of `task` is the server's address; each other line is a number of tasks and their call.
fn make_calls(task: &str) {
    let mut lines = task.lines();
    let client = Client::open(lines.next().expect("an address")).expect("an address");
    let calls: Vec<(u64, &str)> = lines
        .map(|line| line.split_once(' ').expect("a number and a call"))
        .map(|(tasks, call)| (tasks.parse().expect("a number"), call))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // One connection after the other, because the backlog of a socket is short.
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

/// One task: waits until it is granted. In production it would then call the third party.
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

pub async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    // By default, the client gives up long before the server does.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    client.get_multiplexed_async_connection_with_config(&patient).await
}

// ---- The fleet ----

/// The outcome: a table, and descriptions of what is wrong.
#[derive(Default)]
struct Run {
    table: String,
    wrong: Vec<String>,
}

/// Plays all quotas at once. `bursts`: all calls of a window may be granted at the same moment.
fn simulate(test: &str, limiter: &str, options: &str, bursts: bool) -> Run {
    let server = Watched::with(&["--maxclients", "9000"]);
    let mut work = vec![format!("unix://{}", server.dir().join("server.sock").display())];
    for (index, quota) in QUOTAS.iter().enumerate() {
        let Quota { limit, period_ms, tasks } = quota;
        // The last process takes the remaining tasks.
        work.push(format!("{} {limiter} partner-{index} {limit} {period_ms}ms {options} BLOCK 600", tasks / PROCESSES));
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
        // Calls that are granted together at the start do not count for the rate.
        let at_start = if bursts { limit } else { 1 };
        let ideal_us = u128::from((tasks - at_start) * period_ms * 1_000 / limit);
        let share = ideal_us as f64 / span_us as f64;
        // A grant may be late and the next one on time. So a window is shorter by the longest time for which the server
        // stood still, and by ten milliseconds for its timers and the replies.
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
        // On the whole, the rate can't exceed the limit either, except that the first grant may be late.
        if share > 1.03 {
            run.wrong.push(format!("{limit} per {period_ms} ms: {share:.3} of the limit"));
        }
        // Units that become free while the server stands still for long are lost. And a sliding window counts calls from the
        // time of their grants.
        let windows = if bursts { i64::try_from((tasks - at_start).div_ceil(limit)).expect("a few") } else { 0 };
        let lost_us = server.lost_us(from, to) + windows * stop_us as i64;
        if ideal_us as f64 / (span_us as f64 - lost_us as f64) < 0.97 {
            run.wrong.push(format!("{limit} per {period_ms} ms: {share:.3} of the limit"));
        }
    }
    run
}
