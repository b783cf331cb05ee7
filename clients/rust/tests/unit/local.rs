//! GCRA in the process: exact, and with a bounded number of keys.

use std::time::Duration;

use super::{Local, KEYS};
use crate::amount::Amount;
use crate::{Decision, Gcra, Policy};

fn open() -> Decision {
    Decision::open(1, Policy::from(Gcra::new("1/s").expect("a policy")), "api".into())
}

#[test]
fn units_come_back_one_by_one_and_nothing_is_rounded() {
    // 3 units in a second: none of the times is a whole microsecond.
    let mut local = Local::new(Gcra::new("3/s").expect("a policy"));
    let began = std::time::Instant::now();
    let mut granted = 0;
    while began.elapsed() < Duration::from_millis(1_500) {
        let before = local.epoch.elapsed();
        granted += local.decide(b"a", Amount::Cost(1), true, open()).granted;
        // The burst, and what the rate has given until now.
        let most = 3 + 3 * local.epoch.elapsed().as_micros() / 1_000_000;
        assert!(u128::from(granted) <= most, "{granted} in {before:?}");
    }
    assert!(granted >= 7, "{granted}");
}

#[test]
fn a_large_limit_does_not_overflow() {
    let gcra = Gcra::new("1000000000000/3650d").expect("a policy");
    let mut local = Local::new(gcra);
    let decision = local.decide(b"a", Amount::Cost(1_000_000_000_000), true, open());
    assert_eq!((decision.granted, decision.remaining), (1_000_000_000_000, 0));
    assert!(local.decide(b"a", Amount::Cost(1_000_000_000_000), true, open()).wait_ms > Some(1_000_000_000));
    let none = Local::new(Gcra::new("0/s").expect("a policy")).decide(b"a", Amount::Cost(1), true, open());
    assert_eq!((none.granted, none.wait_ms, none.limit), (0, None, 0));
}

#[test]
fn the_key_that_was_not_used_for_longest_is_forgotten_first() {
    let mut local = Local::new(Gcra::new("1/h").expect("a policy"));
    for key in 0..KEYS.get() {
        assert!(local.decide(&key.to_ne_bytes(), Amount::Cost(1), true, open()).allowed());
    }
    // The first keys are used again, by calls that are denied. A call for several keys looks before it takes.
    assert!(!local.decide(&0_usize.to_ne_bytes(), Amount::Cost(1), true, open()).allowed());
    assert!(!local.decide(&1_usize.to_ne_bytes(), Amount::Cost(1), false, open()).allowed());
    assert!(local.decide(b"new", Amount::Cost(1), true, open()).allowed());
    assert_eq!(local.arrivals.len(), KEYS.get());
    assert!(!local.decide(&0_usize.to_ne_bytes(), Amount::Cost(1), false, open()).allowed());
    assert!(!local.decide(&1_usize.to_ne_bytes(), Amount::Cost(1), false, open()).allowed());
    assert!(local.decide(&2_usize.to_ne_bytes(), Amount::Cost(1), false, open()).allowed());
}
