//! A server whose clocks a test moves.

use std::fs::{set_permissions, write, File, OpenOptions, Permissions};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::{server_program, witness, Server};

/// A server whose clocks a test moves or freezes, by the library `clock.c`.
pub struct Clocked {
    // Declared before the folder, so that it is dropped first.
    server: Server,
    file: File,
    _folder: tempfile::TempDir,
}

impl Deref for Clocked {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Clocked {
    /// Starts a server whose clocks go on as they do.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// As [`Self::start`], with these options.
    pub fn with(options: &[&str]) -> Self {
        Self::at([0; 2], options)
    }

    /// Starts a server whose clocks stand still.
    pub fn frozen(options: &[&str]) -> Self {
        // The steady clock shows a few minutes.
        let steady_us = 1_000_000_000;
        Self::at([steady_us, 1_800_000_000_000_000 - steady_us], options)
    }

    /// Starts a server. `clocks` is what the file holds: see `clock.c`.
    fn at(clocks: [i64; 2], options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [program, file] = ["server", "clock"].map(|name| folder.path().join(name));
        let library = witness::build("clock", folder.path());
        write(&file, clocks.map(i64::to_ne_bytes).as_flattened()).expect("a file");
        let (clock, library, server) = (file.display(), library.display(), server_program());
        write(&program, format!("#!/bin/sh\nCLOCK_FILE='{clock}' LD_PRELOAD='{library}' exec '{server}' \"$@\"\n"))
            .expect("a file");
        set_permissions(&program, Permissions::from_mode(0o755)).expect("a program");
        let server = Server::of(&program.display().to_string(), true, options);
        let file = OpenOptions::new().read(true).write(true).open(&file).expect("the file");
        Self { server, file, _folder: folder }
    }

    /// Steps the wall clock to so many microseconds ahead of what it would show by itself, or ahead of the frozen steady clock.
    pub fn step(&self, ahead_us: i64) {
        self.file.write_all_at(&ahead_us.to_ne_bytes(), 8).expect("a step");
    }

    /// Moves both clocks of a frozen server ahead.
    pub fn pass(&self, us: i64) {
        let mut steady = [0; 8];
        self.file.read_exact_at(&mut steady, 0).expect("the clock");
        self.file.write_all_at(&(i64::from_ne_bytes(steady) + us).to_ne_bytes(), 0).expect("a step");
    }
}
