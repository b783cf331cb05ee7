//! Processes, the signals that they are sent, the files that they may open, and loads that end when their test does.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use rustix::process::Signal;
use rustix::process::{kill_process, kill_process_group, Pid};

/// Makes the system send `signal` to a program when the thread that starts it ends, also when the thread's process is killed
/// and no destructor runs. So start the program in a thread that lives as long as the program must: a test's own thread does.
pub fn dies_with_this_thread(command: &mut Command, signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, getppid, set_parent_process_death_signal};
        let parent = getpid();
        let prepare = move || {
            set_parent_process_death_signal(Some(signal))?;
            // If the parent was killed before the call above, the system will send no signal.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::Error::other("the parent is gone"))
            }
        };
        // SAFETY: between fork and exec the closure makes two system calls, and allocates nothing unless it fails.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (command, signal);
}

/// Raises the number of files that this process may open as far as the system lets it, and returns that number. Tests that run
/// side by side in one process share it, and most shells start programs with 1024.
pub fn raise_open_files() -> u64 {
    rlimit::increase_nofile_limit(u64::MAX).expect("the limit of open files")
}

pub(crate) fn process(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process")
}

/// Sends a signal to a process. This does not use the program `kill`, which is not on every machine.
pub fn send(pid: u32, signal: Signal) {
    kill_process(process(pid), signal).unwrap_or_else(|error| panic!("{signal:?} to {pid}: {error}"));
}

/// Sends a signal to all processes of a group. Does nothing if the group has none.
pub fn send_to_group(group: u32, signal: Signal) {
    let _ = kill_process_group(process(group), signal);
}

/// Whether a process has this id. A process that has ended, but whose parent has not waited for it yet, still has its id.
pub fn is_process(pid: u32) -> bool {
    rustix::process::test_kill_process(process(pid)).is_ok()
}

/// Tells the threads of a [scope](std::thread::scope) how long to go on. Keep the guard of [`Load::ends_here`] in the
/// scope's body: when the body ends, also by a panic, the guard ends the load. Otherwise the scope would wait for its
/// threads for ever.
pub struct Load {
    over: AtomicBool,
    until: Instant,
}

impl Default for Load {
    fn default() -> Self {
        Self::lasting_at_most(Duration::from_secs(180))
    }
}

impl Load {
    /// A load whose threads panic if it has not been ended after this time.
    pub fn lasting_at_most(time: Duration) -> Self {
        Self { over: AtomicBool::new(false), until: Instant::now() + time }
    }

    /// Whether the threads should go on. Panics when the time of [`Self::lasting_at_most`] is over.
    pub fn goes_on(&self) -> bool {
        let over = self.over.load(Ordering::SeqCst);
        assert!(over || Instant::now() < self.until, "the load does not end");
        !over
    }

    /// Ends the load.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Returns a guard that ends the load when it is dropped.
    pub fn ends_here(&self) -> impl Drop + '_ {
        struct End<'a>(&'a Load);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        End(self)
    }
}
