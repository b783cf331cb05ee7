//! Makes pipelined calls on one connection, by a client that does hardly more than write and read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::Connection;

use support::{call, info, Server};

/// The bytes of a command on the wire.
pub fn packed(words: &[&[u8]]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| {
        command.arg(word);
    });
    command.get_packed_command()
}

/// The bytes of a command on the wire; its words are divided by spaces.
pub fn line(words: &str) -> Vec<u8> {
    packed(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// A connection with the least possible client.
pub struct Pipe {
    stream: UnixStream,
    buffer: Box<[u8]>,
}

impl Pipe {
    /// Connects.
    pub fn to(server: &Server) -> Self {
        let stream = UnixStream::connect(server.dir().join("server.sock")).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self { stream, buffer: vec![0; 1 << 16].into() }
    }

    /// Sends commands, of which there are `calls`, and reads as many replies. Panics if one is an error.
    pub fn send(&mut self, commands: &[u8], calls: usize) {
        self.stream.write_all(commands).expect("a connection");
        let mut missing = calls as isize;
        // How many elements of arrays are still to come.
        let mut nested = 0;
        let mut start = true;
        let (mut bulk, mut len) = (0, None);
        while missing > 0 || nested > 0 || bulk > 0 || len.is_some() {
            let read = self.stream.read(&mut self.buffer).expect("a reply");
            assert!(read > 0, "the server hung up");
            for &byte in &self.buffer[..read] {
                // A byte of a bulk string or of the line end after it.
                if bulk > 0 {
                    bulk -= 1;
                    continue;
                }
                match (start, byte) {
                    (true, b'-') => panic!("an error: {}", String::from_utf8_lossy(&self.buffer[..read])),
                    (true, _) => {
                        if nested > 0 {
                            nested -= 1;
                        } else {
                            missing -= 1;
                        }
                        start = false;
                        len = matches!(byte, b'*' | b'$').then_some((byte, 0));
                    }
                    (false, b'\n') => {
                        start = true;
                        match len.take() {
                            Some((b'*', items)) => nested += items,
                            Some((_, bytes)) => bulk = bytes + 2,
                            None => {}
                        }
                    }
                    (false, b'-') => len = None,
                    (false, digit) => {
                        if let (Some((_, number)), b'0'..=b'9') = (&mut len, digit) {
                            *number = *number * 10 + usize::from(digit - b'0');
                        }
                    }
                }
            }
        }
    }
}

/// The processor time that the server's main thread has used.
pub fn cpu(client: &mut Connection) -> Duration {
    let text: String = call(client, "INFO cpu");
    let field = |name: &str| -> f64 {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()).expect("a number")
    };
    Duration::from_secs_f64(field("used_cpu_user_main_thread") + field("used_cpu_sys_main_thread"))
}

/// `used_memory` after it has stopped changing: clients have disconnected, and the hash tables have grown.
pub fn settled_memory(client: &mut Connection) -> i64 {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut last, mut same) = (0, 0);
    while same < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(120));
        let memory = info(client, "memory", "used_memory");
        same = if memory == last { same + 1 } else { 0 };
        last = memory;
    }
    last
}
