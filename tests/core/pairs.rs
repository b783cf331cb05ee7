//! A view stores only what a view of its own kind has decided. No type says so, so debug builds assert it.

use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_rl::limiter::{Amount, Bytes, Change, Id, Instant, Kind, Next, Quota, Request, Span};

#[test]
fn a_view_stores_no_state_of_another_kind() {
    let now = Instant::from_us(1_760_000_000_000_000);
    let quota = Quota::new(10, Span::from_us(60_000_000)).expect("in range");
    let policies: Vec<_> = Kind::ALL.iter().map(|kind| kind.policy(quota).expect("in range")).collect();
    let views: Vec<_> = policies.iter().map(|policy| policy.view(None, now).expect("no record")).collect();
    let id = Id::new(b"id").expect("an id");
    let requests = [Request::now(Amount::Cost(1)), Request::now(Amount::Cost(1)).with_id(id)];
    // Views of FIXED, GCRA and BUCKET are of one kind.
    let kind = |next: &Next<'_>| match next {
        Next::Keep | Next::Remove => None,
        Next::Meter(_) | Next::MeterWithIds(_) => Some(Kind::Gcra),
        Next::Slide(_) | Next::SlideWithIds(_) => Some(Kind::Slide),
        Next::Lease(_) => Some(Kind::Lease),
    };
    let mut refused = 0;
    for decides in &views {
        for (request, stores) in requests.iter().flat_map(|request| views.iter().map(move |view| (request, view))) {
            let (_, next) = decides.decide(*request).expect("a decision");
            let own = kind(&stores.decide(requests[1]).expect("a decision").1);
            let stored = catch_unwind(AssertUnwindSafe(|| stores.store(&next, || 0x5eed, &mut Bytes::default())));
            match stored {
                Ok(change) => {
                    assert!(kind(&next).is_none() || kind(&next) == own, "{next:?}");
                    assert_eq!(change == Change::Keep, matches!(next, Next::Keep));
                }
                Err(panic) => {
                    assert!(kind(&next).is_some() && kind(&next) != own, "{next:?}");
                    let text = panic.downcast_ref::<&str>().copied();
                    assert_eq!(text, Some("a view stores only what it has decided itself"));
                    refused += 1;
                }
            }
        }
    }
    // Two states each of three views of one kind are refused by two views, two of SLIDE by four, and that of a lease by
    // four.
    assert_eq!(refused, 12 + 8 + 4);
}
