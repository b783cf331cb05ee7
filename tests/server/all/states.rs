//! No waiting `RL.ALL` is granted while the server would refuse a direct one. It goes on afterwards, and is denied in time. What
//! the server refuses, and when, is in `waiting.rs`.

use redis::Connection;
use support::witness::Watched;
use support::{assert_same, call, command, error, held, limit, snapshots, AllRows, Held, Server, Signal};

use super::settle;

const MS: i64 = 1_000;

/// Two calls with three keys, which wait until their keys are free after 300 ms.
pub(crate) struct Waiting {
    /// It waits for long enough.
    patient: Held,
    /// It waits for 700 ms.
    impatient: Held,
}

impl Waiting {
    fn words(id: &str, wait: &str) -> String {
        format!("RL.ALL 3 a b c GCRA 1 300ms LEASE 1 1h FIXED 5 1h COST 2 ID {id} BLOCK {wait}")
    }

    pub(crate) fn send(server: &Server, client: &mut Connection) -> Self {
        call::<()>(client, "DEL a b c");
        limit(client, "RL.GCRA a 1 300ms");
        limit(client, "RL.LEASE b 1 300ms ID holder");
        let patient = Held::send(server, &Self::words("patient", "1000"));
        Self { patient, impatient: Held::send(server, &Self::words("impatient", "700ms")) }
    }

    /// The server has refused writes with the error `code` for longer than the second call waits.
    pub(crate) fn only_one_waits(&mut self, client: &mut Connection, code: &str) {
        let direct = error(client, &command(&Self::words("direct", "1000")));
        assert!(direct.starts_with(code), "{direct}");
        let (granted, wait, rows) = self.impatient.answer::<AllRows>().row.expect("a denial");
        assert!(granted == 0 && wait >= 1 && rows.iter().any(|row| row[0] == 0 && row[3] >= 1), "{code}: {rows:?}");
        assert_eq!(call::<i64>(client, "EXISTS c"), 0, "{code}");
    }

    /// The server takes writes again.
    pub(crate) fn one_is_granted(mut self, client: &mut Connection, code: &str) {
        let (granted, wait, rows) = self.patient.answer::<AllRows>().row.expect("a grant");
        assert_eq!((granted, wait, rows[0][0], rows[1][0], rows[2][0]), (1, 0, 1, 1, 2), "{code}");
        assert_eq!(limit(client, "RL.PEEK FIXED c 5 1h")[2], 3, "{code}");
        for key in ["b", "c"] {
            assert_eq!(settle(client, &format!("RL.RELEASE {key} impatient")), None, "{code}");
            assert!(settle(client, &format!("RL.RELEASE {key} patient")).is_some(), "{code}");
        }
    }
}

#[test]
fn a_pause_holds_grants_back_and_a_time_out_comes_in_it() {
    let mut server = Watched::on_port(&[]);
    let replica = server.replica(&[]);
    let mut client = server.client();
    for kind in ["WRITE", "ALL"] {
        call::<()>(&mut client, "FLUSHALL");
        limit(&mut client, "RL.GCRA a 1 600ms");
        limit(&mut client, "RL.LEASE b 1 600ms ID holder");
        let words =
            |id: &str, wait: &str| format!("RL.ALL 3 a b c GCRA 1 600ms LEASE 1 1h FIXED 5 1h COST 2 ID {id} BLOCK {wait}");
        let mut patient = Held::send(&server, &words("patient", "30"));
        let mut impatient = Held::send(&server, &words("impatient", "900ms"));
        // Both calls wait for less than the pause takes.
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").add_command(command(&format!("CLIENT PAUSE 2500 {kind}"))).ignore();
        let ((seconds, us),): ((i64, i64),) = pipe.query(&mut client).expect("a pause");
        // The server counts a pause from the last whole millisecond on.
        let over = (seconds * 1_000_000 + us + 2_500 * MS) / MS * MS;
        let denied = impatient.answer::<AllRows>();
        assert_eq!(denied.row.expect("a denial").0, 0, "{kind}");
        let reply = patient.answer::<AllRows>();
        assert_eq!(reply.row.as_ref().expect("a grant").0, 1, "{kind}");
        let at = server.events("rl.gcra", "a").last().copied().expect("a grant");
        assert!(at >= over, "{kind}: granted {} us before the end of the pause", over - at);
        assert!(*server.events("rl.denied", "b").last().expect("a denial") < over, "{kind}: denied after the pause");
    }
    call::<i64>(&mut client, "WAIT 1 50000");
    assert_same(&snapshots(&mut client), &snapshots(&mut replica.client()));
    assert!(server.server_mut().is_alive());
}

#[test]
fn a_call_goes_on_after_the_server_stood_still() {
    let server = Server::start();
    let mut client = server.client();
    limit(&mut client, "RL.LEASE a 1 200ms ID holder");
    limit(&mut client, "RL.GCRA b 1 200ms");
    let first = Held::send(&server, "RL.ALL 2 a b LEASE 1 1h GCRA 1 200ms ID first BLOCK 30");
    let mut late = Held::send(&server, "RL.ALL 2 a b LEASE 1 1h GCRA 1 200ms ID late BLOCK 300ms");
    server.signal(Signal::STOP);
    std::thread::sleep(std::time::Duration::from_millis(600));
    server.signal(Signal::CONT);
    // Units come before time-outs; the second call is late.
    assert_eq!(first.rows().0, 1);
    let (granted, wait, rows) = late.answer::<AllRows>().row.expect("a denial");
    assert_eq!((granted, rows[0][0]), (0, 0));
    assert!(wait >= 1, "{rows:?}");
    assert_eq!(held(&mut client), 0);
}
