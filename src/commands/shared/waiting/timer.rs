//! The timer, which serves the lines, and the events that make it fire at once.

use std::sync::Arc;

use super::answer::{answer, record_answer};
use super::lines::{lock, WaitQueues, WaitingClient};
use crate::commands::shared::clock::now;
use crate::commands::shared::error::Error;
use crate::commands::shared::stats::ABANDONED;
use crate::limiter::{Instant, Span};
use crate::queue::{self, Task};
use crate::server::{EventHandler, Moved, Server, WriteKey};

/// How many keys the timer opens to serve lines that are due, before the server goes on with other work. It opens as many again to
/// answer clients whose wait has ended. A call counts once for each of its keys.
const BATCH: usize = 500;

/// If the timer is later than this, it is replaced: see [`WaitQueues::on_cron`].
const MAX_TIMER_DELAY: Span = Span::from_us(50_000);

impl EventHandler for WaitQueues {
    fn on_timer(server: &Server<'_>) {
        {
            let mut waiting = lock();
            waiting.timer = None;
            waiting.adjust_to_clock(server);
        }
        let now = now(server);
        let Done { answers, dismissed } = do_tasks(server, now);
        lock().rearm_timer(server, now);
        for (waiter, rows) in &answers {
            if let Ok(rows) = rows {
                record_answer(server, waiter.db, &waiter.claims, rows, now);
            }
        }
        let answers = answers.into_iter().map(|(waiter, rows)| (waiter.client, answer(&waiter.claims, rows)));
        let answers = answers.chain(dismissed.into_iter().map(|(client, error)| (client, Err(error))));
        // If several clients are unblocked in one callback, the server sends their replies in reverse order.
        for (client, answer) in answers.collect::<Vec<_>>().into_iter().rev() {
            if answer.is_err() {
                ABANDONED.increment();
            }
            client.reply_with(answer);
        }
    }

    fn on_key_event(server: &Server<'_>, name: &[u8]) {
        Self::update(server, |waiting, now| waiting.queues.wake(server.db(), name, now));
    }

    fn on_database_event(server: &Server<'_>) {
        Self::update(server, |waiting, now| waiting.queues.wake_all(now));
    }

    fn on_cron(server: &Server<'_>) {
        // After the wall clock was set back, the server's timers do not fire for a while. So a timer that is too late is replaced.
        Self::update(server, |waiting, now| {
            if waiting.timer.is_some_and(|(_, at)| now.since(at) > MAX_TIMER_DELAY) {
                waiting.stop_timer(server);
            }
        });
    }
}

/// The clients whose wait has ended.
#[derive(Default)]
struct Done {
    /// Those that were granted their units, or denied them, and their answers.
    answers: Vec<queue::Served<WaitingClient, Error>>,
    /// Those whose keys this server does not serve any more, and the error for each.
    dismissed: Vec<(WaitingClient, Error)>,
}

/// Does the tasks that are due, as many as one callback may take.
fn do_tasks(server: &Server<'_>, now: Instant) -> Done {
    let (may_grant, is_read_only) = (server.may_write(), server.is_read_only());
    let mut done = Done::default();
    let mut asked = 0;
    // Clients whose wait has ended are answered even if very many lines are due.
    while asked < 2 * BATCH {
        let next = if asked < BATCH { lock().queues.next_task(now) } else { lock().queues.next_timeout(now) };
        let Some(task) = next else { break };
        let keys_each = task.keys.len().max(1);
        // The lock is not held here: if a key has expired, opening the key notifies other modules, and these may call this module.
        let opened = if is_read_only { Opened::Elsewhere(Error::Unblocked) } else { open_keys(server, &task) };
        match opened {
            Opened::Keys(mut keys) => {
                let most = (2 * BATCH - asked).div_ceil(keys_each).min(BATCH);
                let served = lock().queues.serve(&task, &mut keys, now, may_grant, most);
                asked += served.len().max(1) * keys_each;
                done.answers.extend(served);
            }
            Opened::InUse => {
                lock().queues.postpone(&task, now);
                asked += keys_each;
            }
            Opened::Elsewhere(error) => {
                let dismissed = lock().queues.dismiss(&task, now);
                asked += dismissed.len().max(1);
                done.dismissed.extend(dismissed.into_iter().map(|client| (client, error.clone())));
            }
        }
    }
    done
}

/// The keys of a task.
enum Opened<'s> {
    /// They are open.
    Keys(Vec<WriteKey<'s>>),
    /// The server is using one of them.
    InUse,
    /// This server does not serve them. The waiting clients get this error.
    Elsewhere(Error),
}

fn open_keys<'s>(server: &'s Server<'s>, task: &Task) -> Opened<'s> {
    let open = || -> Result<Option<Vec<WriteKey<'s>>>, Moved> {
        task.keys.iter().try_for_each(|key| WriteKey::check_node(server, task.db, key))?;
        let open = |key: &Arc<[u8]>| WriteKey::open_named(server, task.db, key);
        if task.keys.len() > 1 {
            // To open an expired key deletes it, and subscribers to the notification may modify the other keys. So each is opened
            // once while no other is open.
            for key in &task.keys {
                drop(open(key)?);
            }
        }
        if !server.announce(task.db, &task.keys) {
            return Ok(None);
        }
        task.keys.iter().map(open).collect()
    };
    match open() {
        Ok(Some(keys)) => Opened::Keys(keys),
        Ok(None) => Opened::InUse,
        Err(Moved) => Opened::Elsewhere(Error::Moved),
    }
}
