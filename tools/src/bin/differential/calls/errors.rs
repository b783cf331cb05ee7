//! Changes calls so that most of them are errors.

use super::{word, words, Blocking, Calls, Words};

impl Calls {
    /// Changes a call so that it is most likely an error.
    pub(super) fn spoil(&mut self, call: &mut Words, blocking: Blocking) {
        const JUNK: [&[u8]; 46] = [
            b"",
            b"0",
            b"-1",
            b"+1",
            b"1.5",
            b"1e3",
            b"01",
            b" 1",
            b"1 ",
            b"x",
            b"COST",
            b"UPTO",
            b"FORCE",
            b"REFUND",
            b"RESERVE",
            b"ALIGN",
            b"SEGMENTS",
            b"BURST",
            b"CAPACITY",
            b"STEP",
            b"TOKENS",
            b"FIXED",
            b"SLIDE",
            b"GCRA",
            b"BUCKET",
            b"BRUST",
            b"1000000000001",
            b"1000000000000",
            b"18446744073709551615",
            b"18446744073709551616",
            b"99999999999999999999999",
            b"65537",
            b"999us",
            b"1ms",
            b"3650d",
            b"3651d",
            b"86401",
            b"25h",
            b"0.0000001",
            b"0.5us",
            b"1.0000001s",
            b"1w",
            b"\0\r\n\xff",
            b"nan",
            b"a word of more than thirty-two bytes, all told",
            b"'quoted\"\\",
        ];
        for _ in 0..self.rng.usize(1..3) {
            // As a rule the name of the command stays, because the server itself replies to unknown commands.
            let at = if call.len() > 1 && !self.once_in(40) { self.rng.usize(1..call.len()) } else { 0 };
            match self.rng.u32(..6) {
                0 if call.len() > 1 => {
                    call.remove(at.max(1));
                }
                1 => call[at] = self.pick(&JUNK).to_vec(),
                2 => call.insert(at + 1, self.pick(&JUNK).to_vec()),
                3 => {
                    let other = call[at].clone();
                    call.insert(at + 1, other);
                }
                4 => call.truncate(at + 1),
                _ => {
                    let keyword = self.pick(&[
                        "COST", "UPTO", "FORCE", "REFUND", "RESERVE", "ALIGN", "SEGMENTS", "BURST", "CAPACITY", "STEP",
                        "TOKENS",
                    ]);
                    call.push(self.keyword(keyword));
                    if !self.once_in(4) {
                        let value = self.pick(&["1", "2", "7", "0", "100ms"]);
                        call.push(word(value));
                    }
                }
            }
        }
        // Only commands of the module: another command could block, or take long.
        if !call[0].to_ascii_uppercase().starts_with(b"RL.")
            && !call[0].eq_ignore_ascii_case(b"GCRA")
            && !call[0].eq_ignore_ascii_case(b"CL.THROTTLE")
        {
            *call = words("RL.UNKNOWN 1 2 3");
        }
        if blocking == Blocking::Never {
            call.iter_mut().filter(|word| word.eq_ignore_ascii_case(b"BLOCK")).for_each(|word| *word = b"BLOKC".to_vec());
        }
    }
}
