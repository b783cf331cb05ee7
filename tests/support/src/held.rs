//! Calls that the server may hold back before it replies.

use std::fmt::Debug;

use redis::{Connection, FromRedisValue, Value};

use crate::{call, command, time_us, Resp, Server};

/// A client on a connection of its own, which has sent a call and not yet read the reply. With the call it sends `TIME` before
/// and after, so that the server's own clock tells when the call was read and answered.
pub struct Held {
    connection: Connection,
    /// The client's id at the server.
    pub id: i64,
}

/// The reply to `RL.ALL`: 1 if it was granted, else 0; the wait in milliseconds; and a row for each rule.
pub type AllRows = (i64, i64, Vec<[i64; 5]>);

/// The outcome of a [`Held`] call. `T` is the type of the reply.
#[derive(Debug)]
pub struct Reply<T = [i64; 5]> {
    /// The reply, or the error.
    pub row: Result<T, String>,
    /// The server's time in microseconds just before it read the call.
    pub sent_us: i64,
    /// The server's time in microseconds just after it answered; `None` if the connection has ended.
    pub at_us: Option<i64>,
}

impl<T: Debug> Reply<T> {
    /// When the server answered, in microseconds. Panics if the connection has ended.
    pub fn at_us(&self) -> i64 {
        self.at_us.unwrap_or_else(|| panic!("the connection has ended: {self:?}"))
    }
}

impl Reply {
    /// How many units were granted. Panics if the reply is an error.
    pub fn granted(&self) -> i64 {
        self.row.as_ref().unwrap_or_else(|error| panic!("{error}"))[0]
    }
}

impl Held {
    /// Connects, sends a call, and returns when the server has read it.
    pub fn send(server: &Server, words: &str) -> Self {
        Self::prepare(server, Resp::Two).call(&mut server.client(), words)
    }

    /// Connects a client that has not sent its call yet.
    pub fn prepare(server: &Server, resp: Resp) -> Self {
        let mut connection = server.client_of(resp);
        let id = call(&mut connection, "CLIENT ID");
        Self { connection, id }
    }

    /// Sends a call on this connection, and returns when the server has read it. For that, it sends a PING on `other`, a connection
    /// to the same server.
    pub fn call(mut self, other: &mut Connection, words: &str) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").add_command(command(words)).cmd("TIME");
        self.connection.send_packed_command(&pipe.get_packed_pipeline()).expect("a connection");
        call::<()>(other, "PING");
        self
    }

    /// Waits for the five integers.
    pub fn reply(&mut self) -> Reply {
        self.answer()
    }

    /// Waits for the reply to `RL.ALL`, and returns it. Panics on an error.
    pub fn rows(mut self) -> AllRows {
        self.answer().row.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for the reply, which is of type `T` if it is no error.
    pub fn answer<T: FromRedisValue + Debug>(&mut self) -> Reply<T> {
        let text =
            |error: redis::RedisError| format!("{} {}", error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
        let sent_us = self.clock().expect("the server's time");
        let row = match self.connection.recv_response().and_then(Value::extract_error) {
            Ok(reply) => T::from_redis_value(reply).map_err(|error| error.to_string()),
            Err(error) => Err(text(error)),
        };
        // The server closes the connection after some errors.
        let at_us = self.clock();
        assert!(at_us.is_some() || row.is_err(), "{row:?}");
        Reply { row, sent_us, at_us }
    }

    fn clock(&mut self) -> Option<i64> {
        let (seconds, us) = <(i64, i64)>::from_redis_value(self.connection.recv_response().ok()?).ok()?;
        Some(seconds * 1_000_000 + us)
    }

    /// Waits for the reply, and returns its five integers. Panics on an error.
    pub fn row(mut self) -> [i64; 5] {
        self.reply().row.expect("five integers")
    }

    /// The connection, for further calls. The reply must have been read.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Waits for all replies, and returns them in the order of the calls. A thread for each call reads its reply as it comes.
pub fn replies(held: impl IntoIterator<Item = Held>) -> Vec<Reply> {
    // The iterator may send the calls: each thread starts to read before the next call is sent.
    let readers: Vec<_> = held.into_iter().map(|mut held| std::thread::spawn(move || held.reply())).collect();
    readers.into_iter().map(|reader| reader.join().expect("a reply")).collect()
}

/// Calls that the server has executed one right after the other, however busy the machine is.
pub struct AtOnce {
    /// The calls, in the order in which they were executed.
    pub held: Vec<Held>,
    /// The server's time in microseconds before the first call.
    pub from_us: i64,
    /// The server's time in microseconds after the last call.
    pub to_us: i64,
}

/// Makes the server execute calls right after each other, each on a connection of its own. The calls must be of commands that write.
pub fn at_once<W: AsRef<str>>(server: &Server, calls: impl IntoIterator<Item = W>) -> AtOnce {
    at_once_by(server, calls.into_iter().map(|words| (Held::prepare(server, Resp::Two), words)))
}

/// As [`at_once`], with a client for each call.
pub fn at_once_by<W: AsRef<str>>(server: &Server, calls: impl IntoIterator<Item = (Held, W)>) -> AtOnce {
    let mut control = server.client();
    // During the pause, the server reads commands that may write without executing them. When the pause ends, it executes them
    // in the order in which it has read them.
    call::<()>(&mut control, "CLIENT PAUSE 3600000 WRITE");
    let held = calls.into_iter().map(|(held, words)| held.call(&mut control, words.as_ref())).collect();
    let from_us = time_us(&mut control);
    call::<()>(&mut control, "CLIENT UNPAUSE");
    let to_us = time_us(&mut control);
    AtOnce { held, from_us, to_us }
}
