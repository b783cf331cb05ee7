//! One call at a time asks a server that is down, after pauses that double.

use std::time::Instant;

use super::{Breaker, FIRST, LONGEST};
use crate::Error;

fn wait(breaker: &Breaker) {
    let until = breaker.0.lock().down.as_ref().expect("a failure").until;
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

#[test]
fn it_opens_with_a_failure_and_closes_with_a_success() {
    let breaker = Breaker::default();
    // Several calls are on their way, and all of them fail: one failure.
    let [first, second] = [breaker.attempt(false), breaker.attempt(false)].map(|attempt| attempt.expect("an attempt"));
    first.down(&Error::LeaseLost);
    second.down(&Error::Closed);
    let (error, pause) = breaker.attempt(false).err().expect("it is open");
    assert!(matches!(error, Error::LeaseLost) && pause <= FIRST, "{error:?} {pause:?}");
    // What must be tried is tried, and is not the probe.
    breaker.attempt(true).expect("an attempt").down(&Error::Closed);
    wait(&breaker);
    let probe = breaker.attempt(false).expect("an attempt");
    assert!(breaker.attempt(false).is_err() && breaker.down().is_some());
    // A probe that is dropped leaves its place to the next one.
    drop(probe);
    let probe = breaker.attempt(false).expect("an attempt");
    assert!(breaker.attempt(false).is_err());
    probe.up();
    assert!(breaker.attempt(false).is_ok() && breaker.down().is_none());
}

#[test]
fn the_pauses_double_up_to_five_seconds() {
    let breaker = Breaker::default();
    for pause in [1, 2, 4, 8, 16, 32, 50, 50].map(|times| FIRST * times) {
        let attempt = breaker.attempt(false).expect("an attempt");
        let before = Instant::now();
        attempt.down(&Error::Closed);
        let after = Instant::now();
        let mut state = breaker.0.lock();
        let down = state.down.as_mut().expect("a failure");
        // With jitter: three quarters of the pause at least.
        let (least, most) = (before + pause.mul_f64(0.75), after + pause);
        assert!((least..=most).contains(&down.until), "{pause:?}");
        down.until = Instant::now();
    }
    assert_eq!(breaker.0.lock().down.as_ref().expect("a failure").pause, LONGEST);
}

#[test]
fn a_call_that_fails_late_does_not_open_it_when_others_were_answered() {
    let breaker = Breaker::default();
    let late = breaker.attempt(false).expect("an attempt");
    breaker.attempt(false).expect("an attempt").up();
    late.down(&Error::Closed);
    assert!(breaker.down().is_none());
}
