//! Calls of the module's commands, and of the server's commands that concern the module.

use super::{word, words, Blocking, Calls, Policy, Words, DAY_US, FIXED, GCRA, KINDS, LEASE, MANY, POLICY};

impl Calls {
    /// The algorithm's own options, as clauses.
    fn option_clauses(&mut self, policy: &Policy) -> Vec<Words> {
        let mut clauses = Vec::new();
        if let Some(option) = policy.option {
            let keyword = self.keyword(["ALIGN", "SEGMENTS", "BURST", "CAPACITY"][policy.kind]);
            let value = if policy.kind == FIXED { self.duration(option) } else { word(&option.to_string()) };
            clauses.push(vec![keyword, value]);
        }
        if policy.step {
            clauses.push(vec![self.keyword("STEP")]);
        }
        clauses
    }

    /// `limit period` and options: at most one of the first `amounts` amounts, and BLOCK or RESERVE unless `blocking` is
    /// `None`.
    fn rule(&mut self, policy: &Policy, amounts: usize, blocking: Option<Blocking>) -> Words {
        let mut rule = vec![word(&policy.limit.to_string()), self.duration(policy.period_us)];
        let mut clauses = self.option_clauses(policy);
        clauses.extend(self.amount_clauses(policy, amounts, blocking));
        self.rng.shuffle(&mut clauses);
        rule.extend(clauses.concat());
        rule
    }

    /// The clauses of [`Self::rule`] that are no part of a limit.
    fn amount_clauses(&mut self, policy: &Policy, amounts: usize, blocking: Option<Blocking>) -> Vec<Words> {
        let mut clauses = Vec::new();
        let leases = policy.kind == LEASE;
        let amounts = if leases && !self.once_in(40) { 1 } else { amounts };
        let amount = self.weighted(&[&[35, 30, 12, 9, 12][..=amounts]].concat());
        if amount > 0 {
            let keyword = self.keyword(["COST", "UPTO", "FORCE", "REFUND"][amount - 1]);
            clauses.push(vec![keyword, word(&self.amount(policy).to_string())]);
        }
        if let Some(blocking) = blocking {
            let reserves = amount <= 1 && !leases && self.once_in(5) || self.once_in(100);
            let blocks = match blocking {
                Blocking::Never => false,
                Blocking::Harmless => amount <= 2 && self.once_in(5) || self.once_in(100),
                Blocking::Always => amount <= 2 || self.once_in(20),
            };
            if blocks || reserves {
                let keyword = self.keyword(if blocks { "BLOCK" } else { "RESERVE" });
                let patience = self.patience(policy);
                clauses.push(vec![keyword, self.duration(patience)]);
            }
            let names = if leases { !self.once_in(20) } else { amount <= 2 && self.once_in(4) || self.once_in(60) };
            if names && self.knows("rl.settle") {
                clauses.push(vec![self.keyword("ID"), self.id()]);
            }
            if leases && self.once_in(5) {
                clauses.push(vec![self.keyword("RENEW")]);
            }
        }
        clauses
    }

    /// A call of a limiter, `RL.FIXED` and the like.
    pub fn limiter(&mut self, blocking: Blocking, key: Option<Vec<u8>>) -> Words {
        let (name, mut policy) = self.target();
        let name = match key {
            None => name,
            Some(name) => {
                if let Some(slot) = self.slots.iter().find(|slot| slot.name == name) {
                    policy = slot.policy.clone();
                }
                name
            }
        };
        let mut words = vec![self.keyword(&format!("RL.{}", KINDS[policy.kind])), name];
        words.extend(self.rule(&policy, 4, Some(blocking)));
        words
    }

    /// The limit that a key has.
    fn policy_of(&self, key: &[u8]) -> Option<Policy> {
        self.slots.iter().find(|slot| slot.name == key).map(|slot| slot.policy.clone())
    }

    /// A call under a key's own limit, with this clause.
    fn clause_for(&mut self, key: &[u8], policy: &Policy, clause: Words) -> Words {
        let mut words = vec![word(&format!("RL.{}", KINDS[policy.kind])), key.to_vec()];
        words.extend([word(&policy.limit.to_string()), self.duration(policy.period_us)]);
        words.extend(self.option_clauses(policy).concat());
        words.extend(clause);
        words
    }

    /// A call that uses a key up, or more than that.
    pub fn fill(&mut self, key: &[u8]) -> Words {
        let Some(policy) = self.policy_of(key) else { return words("PING") };
        if policy.kind == LEASE {
            let (all, id) = (word(&policy.limit.max(1).to_string()), self.id());
            return self.clause_for(key, &policy, vec![word("COST"), all, word("ID"), id]);
        }
        let units = policy.capacity().saturating_mul(self.rng.u64(1..3)).clamp(1, 1_000_000_000_000);
        self.clause_for(key, &policy, vec![word("FORCE"), word(&units.to_string())])
    }

    /// A call that has to wait for a key that is used up, and is most likely granted before its timeout.
    pub fn wait_for(&mut self, key: &[u8]) -> Words {
        let Some(policy) = self.policy_of(key) else { return words("PING") };
        let units = self.rng.u64(1..=policy.capacity().clamp(1, 20));
        let amount = if policy.kind == LEASE { "COST" } else { self.pick(&["COST", "COST", "UPTO"]) };
        let patience = policy.period_us.saturating_mul(self.rng.i64(1..6)).min(DAY_US);
        let patience = self.duration(patience);
        let mut clause = vec![word(amount), word(&units.to_string()), word("BLOCK"), patience];
        if self.knows("rl.settle") && (policy.kind == LEASE || self.once_in(4)) {
            clause.extend([word("ID"), self.id()]);
        }
        self.clause_for(key, &policy, clause)
    }

    /// A call that ends a charge, a lease or a pause, or begins a pause; a limiter's call if the module has none of these.
    pub fn settle_or_pause(&mut self, key: Vec<u8>) -> Words {
        let policy = self.policy_of(&key);
        match (self.weighted(&[50, 40, 10]), policy) {
            (0, Some(policy)) if self.knows("rl.settle") => {
                let units = if self.once_in(4) { 0 } else { self.amount(&policy) };
                vec![self.keyword("RL.SETTLE"), key, self.id(), word(&units.to_string())]
            }
            (1, _) if self.knows("rl.release") => vec![self.keyword("RL.RELEASE"), key, self.id()],
            (_, Some(policy)) if self.knows("rl.pause") => {
                let us = if self.rng.bool() { 0 } else { self.patience(&policy).max(1_000) };
                vec![self.keyword("RL.PAUSE"), key, self.duration(us)]
            }
            _ => self.limiter(Blocking::Never, Some(key)),
        }
    }

    /// The key of a policy, of which there are few.
    fn policy_key(&mut self) -> Vec<u8> {
        [POLICY, self.rng.u32(..4).to_string().as_bytes()].concat()
    }

    /// A call under a policy's key.
    fn use_policy(&mut self, blocking: Blocking) -> Words {
        let (name, policy) = self.target();
        let count = self.pick(&[1, 1, 1, 2, 3]);
        let mut words = vec![self.keyword("RL.USE"), name, word(&count.to_string())];
        words.extend((0..count).map(|_| self.policy_key()));
        words.extend(self.amount_clauses(&policy, 4, Some(blocking)).concat());
        words
    }

    /// A call that sets a policy's key.
    fn set_policy(&mut self) -> Words {
        let policy = self.target().1;
        let mut words = vec![self.keyword("RL.POLICY"), self.policy_key(), self.keyword(KINDS[policy.kind])];
        words.extend([word(&policy.limit.to_string()), self.duration(policy.period_us)]);
        words.extend(self.option_clauses(&policy).concat());
        words.extend(self.once_in(6).then(|| word("SHADOW")));
        words
    }

    /// One of many calls by which a long log grows. Returns the call and by how many microseconds it is later than the one
    /// before: about a tick.
    pub fn lengthen(&mut self, key: &[u8]) -> (Words, i64) {
        let Some(mut policy) = self.policy_of(key) else { return (words("PING"), 0) };
        let tick_us = policy.period_us / 65_536 + 1;
        if self.once_in(40) {
            policy.option = self.pick(&[None, Some(65_536), Some(60_000), Some(1_000)]);
        }
        if self.once_in(40) {
            policy.limit = self.pick(&[90_000, 100_000, 200_000]);
        }
        let clause = match self.rng.u32(..40) {
            0 => "REFUND 3",
            1 => "FORCE 5",
            2 => "RESERVE 1h",
            3 => "UPTO 9",
            4..=10 => "COST 2",
            _ => "COST 1",
        };
        (self.clause_for(key, &policy, words(clause)), self.rng.i64(0..=2 * tick_us))
    }

    fn peek(&mut self) -> Words {
        let (name, policy) = self.target();
        let mut words = vec![word("RL.PEEK"), self.keyword(KINDS[policy.kind]), name];
        words.extend(self.rule(&policy, 2, None));
        words
    }

    /// A call of several limiters.
    pub fn all(&mut self, blocking: Blocking) -> Words {
        let count = match self.weighted(&[80, 18, 2]) {
            0 => self.rng.usize(1..5),
            1 => self.rng.usize(1..21),
            _ if !self.bytes => MANY,
            _ => self.rng.usize(20..300),
        };
        let (mut names, mut rules, mut leases) = (Vec::new(), Words::new(), false);
        for index in 0..count {
            let (mut name, policy) = self.target();
            if count > 20 || names.contains(&name) && !self.once_in(60) {
                name = format!("{{tag}}:many:{index}").into_bytes();
            }
            names.push(name);
            leases |= policy.kind == LEASE;
            rules.push(self.keyword(KINDS[policy.kind]));
            rules.extend(self.rule(&policy, 1, None));
        }
        let stated = if self.once_in(50) { count + self.rng.usize(..3) - 1 } else { count };
        let mut words = vec![word("RL.ALL"), word(&stated.to_string())];
        words.extend(names);
        words.extend(rules);
        if self.knows("rl.settle") && (leases && !self.once_in(20) || self.once_in(4)) {
            words.extend([self.keyword("ID"), self.id()]);
        }
        if blocking == Blocking::Always || blocking == Blocking::Harmless && self.once_in(5) {
            let policy = self.target().1;
            let patience = self.patience(&policy);
            words.extend([self.keyword("BLOCK"), self.duration(patience)]);
        }
        words
    }

    fn throttle(&mut self) -> Words {
        let (name, policy) = self.gcra_target();
        let capacity = if policy.kind == GCRA { policy.option.unwrap_or(policy.limit as i64) } else { policy.limit as i64 };
        let seconds = policy.period_us / 1_000_000 + i64::from(policy.period_us % 1_000_000 > 0);
        let mut words = vec![self.keyword("CL.THROTTLE"), name];
        words.extend([(capacity - 1).max(0), policy.limit as i64, seconds].map(|number| word(&number.to_string())));
        if self.once_in(2) {
            let quantity = self.amount(&policy) as i64;
            let any = self.pick(&[0, 1, quantity, -quantity, quantity, -1]);
            words.push(word(&any.to_string()));
        }
        words
    }

    fn tokens(&mut self) -> Words {
        let (name, policy) = self.gcra_target();
        let capacity = if policy.kind == GCRA { policy.option.unwrap_or(policy.limit as i64) } else { policy.limit as i64 };
        let seconds = policy.period_us as f64 / 1.0e6;
        let period = match self.rng.u32(..4) {
            0 => format!("{seconds}"),
            1 => format!("{seconds:e}"),
            2 => format!("{:.7}", seconds + 0.000_000_4),
            _ => format!("{}", policy.period_us / 1_000_000 + 1),
        };
        let mut words =
            vec![self.keyword("GCRA"), name, word(&(capacity - 1).max(0).to_string()), word(&policy.limit.to_string())];
        words.push(word(&period));
        if self.once_in(2) {
            words.push(self.keyword("TOKENS"));
            words.push(word(&self.amount(&policy).to_string()));
        }
        words
    }

    /// A call of a command of the module, or of a command of the server that concerns it. One in fourteen is changed, most
    /// likely to an error.
    pub fn call(&mut self, blocking: Blocking) -> Words {
        let mut call = match self.weighted(&[630, 90, 60, 40, 50, 50, 12, 4, 12, 8, 2, 70, 50, 10]) {
            0 => self.limiter(blocking, None),
            1 => self.peek(),
            2 => self.all(blocking),
            3 => vec![self.keyword("RL.INSPECT"), self.any_key()],
            4 => self.throttle(),
            5 => self.tokens(),
            6 => match self.rng.u32(..5) {
                0 => words("RL.TOP"),
                1 => words("RL.TOP 1024"),
                2 if self.once_in(5) => vec![word("RL.TOP"), self.keyword("RESET")],
                _ => vec![word("RL.TOP"), word(&self.rng.u32(..40).to_string())],
            },
            7 if self.texts => words("RL.HELP"),
            8 => words("INFO rl"),
            9 => match self.rng.u32(..8) {
                0 => words("CONFIG GET rl.compat"),
                1 => vec![word("CONFIG"), word("SET"), word("rl.top-keys"), word(&self.rng.i32(-1..1_030).to_string())],
                2 => words("CONFIG SET rl.top-keys 128"),
                3 => vec![word("CONFIG"), word("SET"), word("rl.top-half-life"), word(&self.rng.i32(0..90_000).to_string())],
                4 => words("CONFIG SET rl.compat none"),
                _ => words("CONFIG GET rl.top-half-life"),
            },
            11 => {
                let key = self.any_key();
                self.settle_or_pause(key)
            }
            12 if self.knows("rl.use") => self.use_policy(blocking),
            13 if self.knows("rl.policy") => self.set_policy(),
            _ => self.about_commands(),
        };
        if self.once_in(14) {
            self.spoil(&mut call, blocking);
        }
        call
    }

    fn about_commands(&mut self) -> Words {
        let names = self.known.clone();
        if self.texts && self.rng.bool() {
            let name = self.pick(&names);
            return words(&format!("COMMAND DOCS {name}"));
        }
        if self.rng.bool() {
            return words(&format!("COMMAND INFO {}", names.join(" ")));
        }
        let mut call = words("COMMAND GETKEYS");
        call.extend(if self.rng.bool() { self.all(Blocking::Harmless) } else { self.limiter(Blocking::Harmless, None) });
        call
    }
}

impl Calls {
    /// Changes a call so that it is most likely an error.
    pub(super) fn spoil(&mut self, call: &mut Words, blocking: Blocking) {
        // The words between the bars, also the empty one.
        const JUNK: &str = "|0|-1|+1|1.5|1e3|01| 1|1 |x|COST|UPTO|FORCE|REFUND|RESERVE|ALIGN|SEGMENTS|BURST|CAPACITY|STEP|TOKENS|ID|RENEW|SHADOW|FIXED|\
             SLIDE|GCRA|BUCKET|LEASE|BRUST|1000000000001|1000000000000|18446744073709551615|18446744073709551616|99999999999999999999999|\
             65537|999us|1ms|3650d|3651d|86401|25h|0.0000001|0.5us|1.0000001s|1w|nan|a word of more than thirty-two bytes, all told|\
             'quoted\"\\";
        let mut junk: Words = JUNK.split('|').map(word).collect();
        junk.push(b"\0\r\n\xff".to_vec());
        for _ in 0..self.rng.usize(1..3) {
            // As a rule the name of the command stays, because the server itself replies to unknown commands.
            let at = if call.len() > 1 && !self.once_in(40) { self.rng.usize(1..call.len()) } else { 0 };
            match self.rng.u32(..6) {
                0 if call.len() > 1 => {
                    call.remove(at.max(1));
                }
                1 => call[at] = self.pick(&junk),
                2 => call.insert(at + 1, self.pick(&junk)),
                3 => {
                    let other = call[at].clone();
                    call.insert(at + 1, other);
                }
                4 => call.truncate(at + 1),
                _ => {
                    let keyword = self.pick(&[
                        "COST", "UPTO", "FORCE", "REFUND", "RESERVE", "ALIGN", "SEGMENTS", "BURST", "CAPACITY", "STEP",
                        "TOKENS", "ID", "RENEW",
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
