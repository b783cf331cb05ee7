//! A server in callgrind, and the instructions that it executes for some calls.

use std::path::Path;
use std::process::Command;

use redis::{Connection, Value};
use support::{info, server_program, Server};
use tools::ids::make;

/// A server in callgrind. It executes calls sixteen at a time.
pub struct Counted {
    server: Server,
    client: Connection,
    process: String,
}

impl Counted {
    /// Starts a server with this build of the module.
    pub fn start(module: &Path) -> Self {
        let module = module.to_str().expect("a path");
        // The server's periodic work, once a second, would vary with the time that callgrind takes.
        let server = Server::of(&server_program(), false, &["--loadmodule", module, "--hz", "1", "--dynamic-hz", "no"]);
        let mut client = server.client();
        let process = info(&mut client, "server", "process_id").to_string();
        Self { server, client, process }
    }

    /// Makes calls. An error is a reply as well.
    pub fn make(&mut self, calls: &[String]) -> Vec<Value> {
        make(&mut self.client, calls)
    }

    /// Makes calls, and returns their replies and the instructions of all of them.
    pub fn count(&mut self, calls: &[String]) -> (Vec<Value>, u64) {
        self.control("-z");
        let replies = self.make(calls);
        self.control("-d");
        (replies, newest_dump(&self.server))
    }

    /// Makes callgrind set its counts to zero (`-z`), or write them to a dump (`-d`).
    fn control(&self, option: &str) {
        let output = Command::new("callgrind_control").args([option, &self.process]).current_dir(self.server.dir()).output();
        let output = output.expect("callgrind_control, of valgrind");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The number of instructions in the latest dump.
fn newest_dump(server: &Server) -> u64 {
    let dumps = std::fs::read_dir(server.dir()).expect("the server's folder").filter_map(|entry| {
        let path = entry.ok()?.path();
        let number: u64 = path.file_name()?.to_str()?.strip_prefix("callgrind.out.")?.rsplit('.').next()?.parse().ok()?;
        Some((number, path))
    });
    let (_, newest) =
        dumps.max_by_key(|(number, path)| (path.metadata().and_then(|data| data.modified()).ok(), *number)).expect("a dump");
    let text = std::fs::read_to_string(newest).expect("a dump");
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")));
    total.and_then(|total| total.trim().parse().ok()).expect("a total")
}
