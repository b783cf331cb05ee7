//! Limits: a policy, a name and a connection; and the calls that take units.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Client, Cmd, IntoConnectionInfo};

use crate::connection::{Answer, Call, Connection, Server};
use crate::send::{decision, decision_or_nil, Failure, Request};
use crate::{All, AnyPolicy, Decision, Error, Fixed, Lease, Policy, RatePolicy, Rule, Span};

/// What a call returns if the server gives no decision, because it is down, slow, loading, a replica, or out of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDown {
    /// [`Error::Down`].
    #[default]
    Closed,
    /// A decision that grants what was asked for, with [`counted`](Decision::counted) false. A warning is logged, once a second
    /// at most.
    Open,
}

/// A connection, and how its limits behave. Cheap to clone.
#[derive(Clone)]
pub struct Limits {
    connection: Arc<dyn Connection>,
    waits: Option<Arc<dyn Connection>>,
    prefix: Arc<[u8]>,
    on_down: OnDown,
    patience: Duration,
    peek_replica: bool,
    log: Arc<Log>,
}

/// When the last warning was logged.
struct Log {
    began: Instant,
    /// The milliseconds from `began` to the next moment at which a warning may be logged.
    next_ms: AtomicU64,
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("prefix", &String::from_utf8_lossy(&self.prefix))
            .field("on_down", &self.on_down)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Limits {
    /// Limits on one server, at an address such as `redis://127.0.0.1/`. The connection is opened with the first call, so a
    /// program can start before its server.
    ///
    /// # Errors
    /// [`Error::Refused`] if the address is malformed.
    pub fn open(address: impl IntoConnectionInfo) -> Result<Self, Error> {
        let client = Client::open(address).map_err(|error| Error::Refused(error.to_string()))?;
        Ok(Self::new(Server::from(client)))
    }

    /// Limits on any [`Connection`]: a `Cluster`, a `Sentinel`, or a connection that the program has.
    pub fn new(connection: impl Connection) -> Self {
        Self {
            connection: Arc::new(connection),
            waits: None,
            prefix: Arc::default(),
            on_down: OnDown::Closed,
            patience: Duration::from_secs(1),
            peek_replica: false,
            log: Arc::new(Log { began: Instant::now(), next_ms: AtomicU64::new(0) }),
        }
    }

    /// What comes before the name of each limit in its keys.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().into();
        self
    }

    /// What a call returns if the server gives no decision; [`OnDown::Closed`] by default.
    pub fn on_down(mut self, on_down: OnDown) -> Self {
        self.on_down = on_down;
        self
    }

    /// How long a call with an id is repeated until it has a reply, and how long any call may take besides its wait; a second
    /// by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the connections of waits, if the connection itself opens none: `limits.waits_with(Server::new(address)?)`.
    pub fn waits_with(mut self, connection: impl Connection) -> Self {
        self.waits = Some(Arc::new(connection));
        self
    }

    /// Lets replicas answer [`Limit::peek`], if the connection is a cluster that reads from replicas.
    pub fn peek_replica(mut self, peek_replica: bool) -> Self {
        self.peek_replica = peek_replica;
        self
    }

    /// A limit with this name. Its keys on the server are the prefix, the name, a colon, and the key of the call. In a cluster,
    /// a name with a hash tag, such as `{acme}:api`, gives all its keys one slot.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] unless the name is printable ASCII, and not empty.
    pub fn limit<P: AnyPolicy>(&self, name: &str, policy: P) -> Result<Limit<P>, Error> {
        if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(Error::InvalidLimit(format!("a name must be printable ASCII, and not empty: {name:?}")));
        }
        let any: Policy = policy.into();
        Ok(Limit {
            limits: self.clone(),
            policy,
            name: name.into(),
            start: [&self.prefix, name.as_bytes(), b":"].concat().into(),
            words: any.arguments().into(),
        })
    }

    /// Takes units from several limits, from all of them or from none.
    ///
    /// ```no_run
    /// # async fn example(limits: redis_rl_client::Limits) -> Result<(), redis_rl_client::Error> {
    /// # use redis_rl_client::Slide;
    /// let requests = limits.limit("{team-b}:requests", Slide::new("60/m")?)?;
    /// let tokens = limits.limit("{team-b}:tokens", Slide::new("100000/m")?)?;
    /// let decision = limits.all([requests.rule("42"), tokens.rule("42").cost(700)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all(&self, rules: impl IntoIterator<Item = Rule>) -> All {
        All::new(self.clone(), rules.into_iter().collect())
    }

    pub(crate) fn connection(&self) -> &dyn Connection {
        &*self.connection
    }

    pub(crate) fn own_patience(&self) -> Duration {
        self.patience
    }

    pub(crate) fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Result<Answer<'a>, Failure> {
        let other = || self.waits.as_ref()?.call_alone(call, timeout);
        self.connection.call_alone(call, timeout).or_else(other).ok_or(Failure::NoClient)
    }

    pub(crate) fn client_for<'a>(&'a self, key: &'a [u8]) -> Option<Answer<'a, Client>> {
        self.connection.client_for(key).or_else(|| self.waits.as_ref()?.client_for(key))
    }

    /// Whether a call goes through although this error gave no decision. Logs that it does.
    pub(crate) fn lets_through(&self, error: &Error) -> bool {
        let open = self.on_down == OnDown::Open && error.is_down();
        if open {
            self.warn(error, "a call goes through uncounted");
        }
        open
    }

    /// Logs a warning, once a second at most.
    pub(crate) fn warn(&self, error: &Error, what: &str) {
        let now_ms = u64::try_from(self.log.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let next_ms = self.log.next_ms.load(Ordering::Relaxed);
        let due = now_ms >= next_ms;
        if due && self.log.next_ms.compare_exchange(next_ms, now_ms + 1_000, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(%error, "{what}");
        }
    }
}

/// A policy with a name and a connection. Cheap to clone.
#[derive(Clone)]
pub struct Limit<P = Policy> {
    pub(crate) limits: Limits,
    pub(crate) policy: P,
    pub(crate) name: Arc<str>,
    /// What the keys of this limit start with.
    start: Arc<[u8]>,
    /// What follows the key in the command.
    words: Arc<[String]>,
}

impl<P: AnyPolicy> fmt::Debug for Limit<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.name, self.policy())
    }
}

/// How many units to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Cost(u64),
    UpTo(u64),
    Force(u64),
    Refund(u64),
}

impl Amount {
    fn units(self) -> u64 {
        match self {
            Self::Cost(units) | Self::UpTo(units) | Self::Force(units) | Self::Refund(units) => units,
        }
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        match self.units() {
            1..=1_000_000_000_000 => Ok(()),
            units => Err(Error::InvalidCost(format!("units must be a whole number from 1 to 1000000000000, not {units}"))),
        }
    }

    pub(crate) fn push(self, command: &mut Cmd) {
        let name = match self {
            Self::Cost(1) => return,
            Self::Cost(_) => "COST",
            Self::UpTo(_) => "UPTO",
            Self::Force(_) => "FORCE",
            Self::Refund(_) => "REFUND",
        };
        command.arg(name).arg(self.units());
    }
}

pub(crate) fn check_id(id: &[u8]) -> Result<(), Error> {
    match id.len() {
        1..=64 => Ok(()),
        length => Err(Error::InvalidId(format!("an id must be 1 to 64 bytes long, not {length}"))),
    }
}

/// An id that no other call has.
pub(crate) fn new_id() -> Vec<u8> {
    uuid::Uuid::new_v4().simple().to_string().into_bytes()
}

impl<P: AnyPolicy> Limit<P> {
    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy.into()
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key on the server: the prefix, the name, a colon, and this key.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] if the key is empty.
    pub fn key(&self, key: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        match key.as_ref() {
            [] => Err(Error::InvalidKey("a key must not be empty".to_string())),
            key => Ok([&self.start, key].concat()),
        }
    }

    /// A rule of [`Limits::all`] that takes a unit of this key.
    pub fn rule(&self, key: impl AsRef<[u8]>) -> Rule {
        Rule::new(self, self.key(key))
    }

    /// The decision that a call would get. Takes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Take<P> {
        Take { how: How::Peek, ..Take::new(self, key.as_ref()) }
    }

    /// Ends a lease, or gives back the charge that has this id. `None` if the key does not remember the id: it was settled,
    /// released or forgotten. The call is repeated until it has a reply.
    ///
    /// # Errors
    /// [`Error::Down`] also if [`OnDown::Open`] is set.
    pub async fn release(&self, key: impl AsRef<[u8]>, id: impl AsRef<[u8]>) -> Result<Option<Decision>, Error> {
        let key = self.key(key)?;
        check_id(id.as_ref())?;
        Ok(self.end(&key, id.as_ref(), None).await?.0)
    }

    /// The start of a command: its name, the key, and the policy.
    pub(crate) fn command(&self, key: &[u8]) -> Cmd {
        let mut command = redis::cmd(match self.policy() {
            Policy::Fixed(_) => "RL.FIXED",
            Policy::Slide(_) => "RL.SLIDE",
            Policy::Gcra(_) => "RL.GCRA",
            Policy::Bucket(_) => "RL.BUCKET",
            Policy::Lease(_) => "RL.LEASE",
        });
        command.arg(key);
        self.push_policy(&mut command);
        command
    }

    /// How long the part is that all keys of this limit have in common.
    pub(crate) fn start_length(&self) -> usize {
        self.start.len()
    }

    pub(crate) fn push_policy(&self, command: &mut Cmd) {
        for word in self.words.iter() {
            command.arg(word);
        }
    }

    /// Settles the charge with this id, or releases it. Also returns how often the call was sent.
    pub(crate) async fn end(&self, key: &[u8], id: &[u8], units: Option<u64>) -> Result<(Option<Decision>, u32), Error> {
        let command = |_| {
            let mut command = redis::cmd(if units.is_some() { "RL.SETTLE" } else { "RL.RELEASE" });
            command.arg(key).arg(id).arg(units);
            command
        };
        let reply = self.limits.send(Request { command: &command, key, repeat: true, wait: None, replica: false }).await?;
        Ok((decision_or_nil(&reply.value, self.policy(), &self.name)?, reply.sent))
    }

    /// A decision that lets a call through, if `error` says that there was none and the limits are open.
    pub(crate) fn or_open(&self, error: Error, granted: u64) -> Result<Decision, Error> {
        match self.limits.lets_through(&error) {
            true => Ok(Decision::uncounted(granted, self.policy(), self.name.clone())),
            false => Err(error),
        }
    }

    /// The limit with any policy.
    pub(crate) fn erase(&self) -> Limit {
        self.with(self.policy())
    }

    /// The limit with its policy as another type.
    pub(crate) fn with<Q>(&self, policy: Q) -> Limit<Q> {
        Limit {
            limits: self.limits.clone(),
            policy,
            name: self.name.clone(),
            start: self.start.clone(),
            words: self.words.clone(),
        }
    }
}

impl<P: RatePolicy> Limit<P> {
    /// Takes a unit of this key: all or none of the [`cost`](Take::cost).
    pub fn take(&self, key: impl AsRef<[u8]>) -> Take<P> {
        Take::new(self, key.as_ref())
    }

    /// Takes as many units as fit, at most this number.
    ///
    /// # Errors
    /// As all calls; a denied call is a decision, and no error.
    pub async fn take_up_to(&self, key: impl AsRef<[u8]>, units: u64) -> Result<Decision, Error> {
        Take { amount: Amount::UpTo(units), ..Take::new(self, key.as_ref()) }.await
    }

    /// Takes units regardless of the state. What is above the capacity is a debt.
    ///
    /// # Errors
    /// As all calls.
    pub async fn force(&self, key: impl AsRef<[u8]>, units: u64) -> Result<Decision, Error> {
        Take { amount: Amount::Force(units), ..Take::new(self, key.as_ref()) }.await
    }

    /// Gives back at most this number of the units in use.
    ///
    /// # Errors
    /// As all calls.
    pub async fn refund(&self, key: impl AsRef<[u8]>, units: u64) -> Result<Decision, Error> {
        Take { amount: Amount::Refund(units), ..Take::new(self, key.as_ref()) }.await
    }

    /// Waits in line for a unit, at most this long: a [`Duration`] or a text such as `"30s"`. The server sends its reply when the
    /// units are granted, on a connection of this call alone. To leave the line, drop the future: nothing is charged then, unless
    /// the units were granted at that moment.
    pub fn wait<W: TryInto<Span>>(&self, key: impl AsRef<[u8]>, wait: W) -> Take<P>
    where
        Error: From<W::Error>,
    {
        Take::new(self, key.as_ref()).wait(wait)
    }

    /// Books units that will be free within this time, and sleeps until they are. A booking stays if the future is dropped.
    pub fn reserve<W: TryInto<Span>>(&self, key: impl AsRef<[u8]>, within: W) -> Take<P>
    where
        Error: From<W::Error>,
    {
        let take = Take::new(self, key.as_ref());
        match Span::of_wait(within) {
            Ok(within) => Take { how: within.map_or(How::Now, How::Reserve), ..take },
            Err(error) => Take { how: How::Invalid(error), ..take },
        }
    }

    /// Takes a unit, and returns [`Error::RateLimited`] if it is denied. With [`wait`](Take::wait) it waits in line.
    pub fn protect(&self, key: impl AsRef<[u8]>) -> Take<P> {
        Take { or_denied: true, ..Take::new(self, key.as_ref()) }
    }

    /// Sets the charge with this id to what it really cost. `None` if the key does not remember the id. The call is repeated
    /// until it has a reply.
    ///
    /// # Errors
    /// [`Error::Down`] also if [`OnDown::Open`] is set.
    pub async fn settle(&self, key: impl AsRef<[u8]>, id: impl AsRef<[u8]>, units: u64) -> Result<Option<Decision>, Error> {
        let key = self.key(key)?;
        check_id(id.as_ref())?;
        check_used(units)?;
        Ok(self.end(&key, id.as_ref(), Some(units)).await?.0)
    }
}

/// Units that were used: 0 is allowed.
pub(crate) fn check_used(units: u64) -> Result<(), Error> {
    match units {
        0..=1_000_000_000_000 => Ok(()),
        _ => Err(Error::InvalidCost(format!("units must be a whole number from 0 to 1000000000000, not {units}"))),
    }
}

impl Limit<Fixed> {
    /// Takes a unit from a window that ends at this time: midnight in a time zone, or the first of the month. The period of the
    /// policy is the longest that the window can be. A policy that is aligned can't be used here.
    pub fn until(&self, key: impl AsRef<[u8]>, time: SystemTime) -> Take<Fixed> {
        let take = Take::new(self, key.as_ref());
        let how = match time.duration_since(UNIX_EPOCH) {
            _ if self.policy.is_aligned() => {
                How::Invalid(Error::InvalidLimit("a window can't be aligned and end at a time".into()))
            }
            Ok(since) => How::Until(since),
            Err(_) => How::Invalid(Error::InvalidLimit("a window can't end before 1970".into())),
        };
        Take { how, ..take }
    }
}

impl Limit<Lease> {
    /// Renews the lease with this id: it then ends one time to live from now. If the id holds no lease, the call is denied.
    /// The call is repeated until it has a reply.
    ///
    /// # Errors
    /// [`Error::Down`] also if [`OnDown::Open`] is set.
    pub async fn renew(&self, key: impl AsRef<[u8]>, id: impl AsRef<[u8]>) -> Result<Decision, Error> {
        let key = self.key(key)?;
        check_id(id.as_ref())?;
        self.renew_at(&key, id.as_ref()).await
    }

    pub(crate) async fn renew_at(&self, key: &[u8], id: &[u8]) -> Result<Decision, Error> {
        let command = |_| {
            let mut command = self.command(key);
            command.arg("ID").arg(id).arg("RENEW");
            command
        };
        let reply = self.limits.send(Request { command: &command, key, repeat: true, wait: None, replica: false }).await?;
        decision(&reply.value, self.policy(), &self.name)
    }
}

#[derive(Clone, Debug)]
enum How {
    Now,
    Peek,
    Block(Span),
    Reserve(Span),
    Until(Duration),
    Invalid(Error),
}

/// A call that takes units. Nothing is sent before it is awaited.
///
/// It is sent once. If its reply is lost, the result is [`Error::Down`], and the server may have charged it. If the future is
/// dropped, the same is true. [`Limit::charge`] gives a call an id, and is charged once or not at all.
#[must_use = "nothing is sent before the call is awaited"]
#[derive(Clone, Debug)]
pub struct Take<P: AnyPolicy> {
    limit: Limit<P>,
    key: Result<Vec<u8>, Error>,
    amount: Amount,
    how: How,
    or_denied: bool,
}

impl<P: AnyPolicy> Take<P> {
    fn new(limit: &Limit<P>, key: &[u8]) -> Self {
        Self { limit: limit.clone(), key: limit.key(key), amount: Amount::Cost(1), how: How::Now, or_denied: false }
    }

    /// How many units to take; 1 by default.
    pub fn cost(self, cost: u64) -> Self {
        Self { amount: Amount::Cost(cost), ..self }
    }

    /// A call that fails with this error.
    #[cfg(feature = "tower")]
    pub(crate) fn refuse(self, error: Error) -> Self {
        Self { how: How::Invalid(error), ..self }
    }

    async fn send(self) -> Result<Decision, Error> {
        let Self { limit, key, amount, how, or_denied } = self;
        let key = key?;
        amount.check()?;
        let policy = limit.policy();
        let wait = match how {
            How::Invalid(error) => return Err(error),
            How::Block(wait) => Some(wait),
            _ => None,
        };
        let peek = matches!(how, How::Peek);
        if matches!(policy, Policy::Lease(_)) && !peek {
            return Err(Error::InvalidLimit("a lease is held, with Limit::hold, and not taken".to_string()));
        }
        let command = |wait: Option<Span>| {
            let mut command = match peek {
                true => {
                    let mut command = redis::cmd("RL.PEEK");
                    command.arg(policy.algorithm()).arg(&key);
                    limit.push_policy(&mut command);
                    command
                }
                false => limit.command(&key),
            };
            if let How::Until(time) = how {
                // The server takes six decimals.
                command.arg("UNTIL").arg(format!("{}.{:06}", time.as_secs(), time.subsec_micros()));
            }
            amount.push(&mut command);
            if let How::Reserve(within) = how {
                command.arg("RESERVE").arg(within.to_string());
            }
            if let Some(wait) = wait {
                command.arg("BLOCK").arg(wait.to_string());
            }
            command
        };
        let replica = peek && limit.limits.peek_replica;
        let request = Request { command: &command, key: &key, repeat: false, wait, replica };
        let decision = match limit.limits.send(request).await {
            Ok(reply) => decision(&reply.value, policy, &limit.name)?,
            Err(error) => limit.or_open(error, amount.units())?,
        };
        if let (How::Reserve(_), true, Some(wait)) = (&how, decision.allowed(), decision.wait()) {
            tokio::time::sleep(wait).await;
        }
        match or_denied {
            true => decision.or_denied(),
            false => Ok(decision),
        }
    }
}

impl<P: RatePolicy> Take<P> {
    /// Waits in line for the units, at most this long: see [`Limit::wait`].
    pub fn wait<W: TryInto<Span>>(self, wait: W) -> Self
    where
        Error: From<W::Error>,
    {
        match Span::of_wait(wait) {
            Ok(wait) => Self { how: wait.map_or(How::Now, How::Block), ..self },
            Err(error) => Self { how: How::Invalid(error), ..self },
        }
    }
}

impl<P: AnyPolicy> IntoFuture for Take<P> {
    type Output = Result<Decision, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
