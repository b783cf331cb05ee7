//! A cluster: each call goes to the node that has its key, and follows its slot if that has moved.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind, Value};
use tokio::sync::Mutex as AsyncMutex;

use super::node::{Find, Node};
use super::{secure, slot, Call, Failure};
use crate::Error;

/// How often a call follows a redirection: while a slot moves, nodes may name each other for a moment.
const REDIRECTIONS: u32 = 16;

/// How long the slots are used for although a node that has some of them is down.
const STALE: Duration = Duration::from_millis(100);

/// A cluster. A call is sent once to the node that has its key. Each node has a shared connection and is down for itself.
pub struct Cluster {
    /// The addresses that the program has named. All nodes have the settings of the first one: TLS, user, password.
    seeds: Vec<ConnectionInfo>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    slots: Mutex<Option<Arc<Slots>>>,
    /// Whoever holds it reads the slots; others wait for it.
    reading: AsyncMutex<()>,
}

type Address = (String, u16);

/// The slots of the nodes, as they were at a moment.
struct Slots {
    read: Instant,
    ranges: Vec<Range>,
}

/// The first and the last slot of a range, and its node.
type Range = (u16, u16, Address);

impl Slots {
    fn owner(&self, key: &[u8]) -> Option<&Address> {
        let slot = slot(key);
        self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, node)| node)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster that has these nodes: some of its addresses are enough. Nothing is sent yet. All nodes have the settings of the first
    /// address; for certificates, take the address of a client that `redis::Client::build_with_tls` has made.
    pub fn new<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let seeds = nodes.into_iter().map(IntoConnectionInfo::into_connection_info).collect::<Result<Vec<_>, _>>();
        let seeds = seeds.map_err(|error| Error::InvalidArgument(error.to_string()))?;
        if seeds.is_empty() {
            return Err(Error::InvalidArgument("a cluster needs the address of a node".to_string()));
        }
        secure();
        Ok(Self { seeds, nodes: Mutex::default(), slots: Mutex::default(), reading: AsyncMutex::default() })
    }

    pub(super) async fn call(&self, call: Call<'_>) -> Result<Value, Failure> {
        let mut address = self.owner(call, None).await?;
        let mut redirections = 0;
        loop {
            let failure = match self.node(&address)?.call(call).await {
                Err(failure) => failure,
                reply => return reply,
            };
            match &failure {
                Failure::Reply(error) => match (error.kind(), redirection(error, &address)) {
                    (ErrorKind::Server(ServerErrorKind::Ask), Some(node)) => {
                        return self.node(&node)?.call(Call { asking: true, ..call }).await;
                    }
                    (ErrorKind::Server(ServerErrorKind::Moved), Some(node)) if redirections < REDIRECTIONS => {
                        *self.slots.lock() = None;
                        tokio::time::sleep(Duration::from_millis(5) * redirections).await;
                        address = node;
                    }
                    _ => return Err(failure),
                },
                // Nothing was sent: another node may have the slot by now.
                Failure::Down(..) | Failure::NoConnection(_) if redirections == 0 => {
                    match self.owner(call, Some(STALE)).await {
                        Ok(other) if other != address => address = other,
                        _ => return Err(failure),
                    }
                }
                _ => return Err(failure),
            }
            redirections += 1;
        }
    }

    /// The node that has the key of a call, by slots that are not older than this.
    async fn owner(&self, call: Call<'_>, oldest: Option<Duration>) -> Result<Address, Failure> {
        let slots = self.slots(call, oldest).await?;
        let owner = slots.owner(call.key).cloned();
        if owner.is_none() {
            *self.slots.lock() = None;
        }
        let none = || RedisError::from((ErrorKind::Server(ServerErrorKind::ClusterDown), "no node has the slot of the key"));
        owner.ok_or_else(|| Failure::Reply(none()))
    }

    async fn slots(&self, call: Call<'_>, oldest: Option<Duration>) -> Result<Arc<Slots>, Failure> {
        let known = || {
            let slots = self.slots.lock().clone();
            slots.filter(|slots| oldest.is_none_or(|oldest| slots.read.elapsed() < oldest))
        };
        if let Some(slots) = known() {
            return Ok(slots);
        }
        // The nodes that are known, and then those that the program has named.
        let named: Vec<Address> = self.seeds.iter().filter_map(|seed| address_of(seed.addr())).collect();
        let mut addresses: Vec<Address> = self.nodes.lock().keys().cloned().collect();
        addresses.extend(named.clone());
        let _reading = match self.reading.try_lock() {
            Ok(reading) => reading,
            Err(_) => match self.all_down(&addresses) {
                Some(failure) => return Err(failure),
                None => self.reading.lock().await,
            },
        };
        if let Some(slots) = known() {
            return Ok(slots);
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failed = None;
        for address in addresses {
            let node = self.node(&address)?;
            match node.call(Call { command: &command, block: None, asking: false, ..call }).await {
                Ok(reply) => {
                    if let Some(ranges) = ranges(reply, &address) {
                        let slots = Arc::new(Slots { read: Instant::now(), ranges });
                        *self.slots.lock() = Some(slots.clone());
                        // Nodes that have left the cluster are forgotten.
                        let has_slots = |address: &Address| slots.ranges.iter().any(|(_, _, node)| node == address);
                        self.nodes.lock().retain(|address, _| has_slots(address) || named.contains(address));
                        return Ok(slots);
                    }
                }
                Err(failure) => failed = Some(failure),
            }
        }
        let shape = || RedisError::from((ErrorKind::UnexpectedReturnType, "the reply to CLUSTER SLOTS has another shape"));
        Err(failed.unwrap_or_else(|| Failure::Reply(shape())))
    }

    pub(super) fn down(&self, key: &[u8]) -> Option<Failure> {
        let slots = self.slots.lock().clone()?;
        self.nodes.lock().get(slots.owner(key)?)?.down()
    }

    /// Why a call can't be made now, if all nodes are known to be down.
    fn all_down(&self, addresses: &[Address]) -> Option<Failure> {
        let nodes = self.nodes.lock();
        let down = |address| nodes.get(address).and_then(|node| node.down());
        addresses.iter().map(down).collect::<Option<Vec<_>>>()?.pop()
    }

    fn node(&self, address: &Address) -> Result<Arc<Node>, Failure> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Ok(node.clone());
        }
        let (host, port) = address.clone();
        let first = &self.seeds[0];
        let place = match first.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let client = Client::open(first.clone().set_addr(place)).map_err(Failure::Reply)?;
        let node = Arc::new(Node::new(Find::At(client)));
        nodes.insert(address.clone(), node.clone());
        Ok(node)
    }
}

fn address_of(address: &ConnectionAddr) -> Option<Address> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => Some((host.clone(), *port)),
        _ => None,
    }
}

/// A host that a node has named. If it names none, it means its own.
fn host_of(host: &str, (own, _): &Address) -> String {
    if matches!(host, "" | "?") { own } else { host }.to_string()
}

/// The node that `MOVED` or `ASK` names.
fn redirection(error: &RedisError, by: &Address) -> Option<Address> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some((host_of(host, by), port.parse().ok()?))
}

/// The reply to `CLUSTER SLOTS` of a node.
fn ranges(reply: Value, by: &Address) -> Option<Vec<Range>> {
    let range = |range: Value| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &*range else { return None };
        let [host, Value::Int(port), ..] = &**primary else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            _ => "",
        };
        let number = |number: &i64| u16::try_from(*number).ok();
        Some((number(first)?, number(last)?, (host_of(host, by), number(port)?)))
    };
    match reply {
        Value::Array(ranges) => ranges.into_iter().map(range).collect(),
        _ => None,
    }
}
