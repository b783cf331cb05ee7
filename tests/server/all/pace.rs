//! The pace of waiting calls that need several rates at once.

use support::witness::Watched;
use support::{at_once, held, AllRows, AtOnce};

const MS: i64 = 1_000;

#[test]
fn late_timers_cost_no_throughput() {
    const GAP_US: i64 = 20 * MS;
    const CALLS: i64 = 100;
    let server = Watched::start();
    // Each call needs two rates of the same pace. Together they grant as often as one of them, which is the comparison.
    for (keys, words) in [
        (1, "RL.ALL 1 one GCRA 50 1 BURST 1 BLOCK 30"),
        (2, "RL.ALL 2 a b GCRA 50 1 BURST 1 BUCKET 50 1 CAPACITY 1 BLOCK 30"),
    ] {
        let AtOnce { held: calls, from_us, to_us } = at_once(&server, std::iter::repeat_n(words, CALLS as usize));
        let mut last = (0, 0);
        for mut call in calls {
            let reply = call.answer::<AllRows>();
            let at = reply.at_us();
            let (granted, _, rows) = reply.row.expect("a grant");
            assert_eq!(granted, 1);
            last = (at, rows.iter().map(|row| row[4]).max().expect("a row"));
        }
        // The moment as of which the last call was charged: nothing is used a gap after it.
        let charged = last.0 + last.1 * MS - GAP_US;
        let due = to_us + (CALLS - 1) * GAP_US + server.lost_us(from_us, last.0);
        let lost_ms = (charged - due) / MS;
        println!("{keys} rates: {lost_ms} ms are lost in {CALLS} calls");
        assert!(lost_ms <= 5, "{keys} rates: {lost_ms} ms are lost in {CALLS} calls");
    }
    assert_eq!(held(&mut server.client()), 0);
}
