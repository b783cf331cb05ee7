//! A server that says anything, or nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that answers each command of the module with the same bytes.
pub struct Liar {
    pub port: u16,
    /// The commands of the module that have arrived.
    pub calls: Arc<AtomicUsize>,
    /// The connections that were accepted.
    pub connections: Arc<AtomicUsize>,
    reply: Arc<Mutex<Vec<u8>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Liar {
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let [calls, connections] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let reply = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn({
            let (calls, connections, reply) = (calls.clone(), connections.clone(), reply.clone());
            async move {
                let mut clients = tokio::task::JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    clients.spawn(lie(client, calls.clone(), reply.clone()));
                }
            }
        });
        Self { port, calls, connections, reply, task }
    }

    /// The answer to each command of the module. Nothing: then no command is answered, as by a server that hangs.
    pub fn says(&self, reply: &[u8]) {
        *self.reply.lock().expect("no panic") = reply.to_vec();
    }
}

async fn lie(mut client: TcpStream, calls: Arc<AtomicUsize>, reply: Arc<Mutex<Vec<u8>>>) {
    let mut bytes = Vec::new();
    loop {
        while let Some((words, length)) = command(&bytes) {
            bytes.drain(..length);
            if reply.lock().expect("no panic").is_empty() {
                continue;
            }
            let answer = match words[0].starts_with("RL.") {
                true => {
                    calls.fetch_add(1, Ordering::SeqCst);
                    reply.lock().expect("no panic").clone()
                }
                // RESP3, or the name of the library.
                false if words[0] == "HELLO" => b"%1\r\n+proto\r\n:3\r\n".to_vec(),
                false => b"+OK\r\n".to_vec(),
            };
            if client.write_all(&answer).await.is_err() {
                return;
            }
        }
        if !matches!(client.read_buf(&mut bytes).await, Ok(1..)) {
            return;
        }
    }
}

/// The words of a whole command, and how many bytes it has.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = || {
        let length = bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&bytes[at..at + length]).into_owned();
        at += length + 2;
        Some(line)
    };
    let count: usize = line()?[1..].parse().ok()?;
    let words = (0..count).map(|_| line().and_then(|_| line())).collect::<Option<Vec<_>>>()?;
    Some((words, at))
}
