use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterClientBuilder, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    cmd, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    Value,
};
use tokio::sync::Mutex as AsyncMutex;

use super::{open, secure, slot, Answer, Call, Connection, Home};

/// How often a call follows a redirection: while a slot moves, nodes may name each other for a moment.
const REDIRECTIONS: u32 = 16;

/// How long the slots of the nodes are used for before they are read again.
const FRESH: Duration = Duration::from_secs(10);

/// A cluster. Calls go to the node that has their key at once, and follow its slot if that has moved. A node that takes more than
/// half a second to accept the shared connection is down; `settings.connection_timeout(..)` changes that.
///
/// The crate `redis` repeats a call whose reply was lost. Here it does not: a call without an id is sent once.
pub struct Cluster {
    client: ClusterClient,
    /// The first node, whose settings (TLS, user, password, protocol) all nodes share.
    node: ConnectionInfo,
    /// The connection of all calls, and how long it waits for a reply of a node.
    shared: AsyncMutex<Option<(Duration, ClusterConnection, Home)>>,
    /// The slots as they were at that moment.
    slots: Mutex<Option<(Instant, Arc<Vec<Range>>)>>,
}

/// How long a connection to a node may take to open, and the least time that the shared connection waits for a reply.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Longer than the patience of any call: the time-out of the program bounds a call only if it has set one.
const NO_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The slots of one node.
struct Range {
    first: u16,
    last: u16,
    host: String,
    port: u16,
}

impl Cluster {
    /// A cluster that has these nodes: some of its addresses are enough. Nothing is sent yet.
    ///
    /// # Errors
    /// If an address is malformed.
    pub fn new<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        Self::with(nodes, |builder| builder)
    }

    /// As [`Cluster::new`], with more settings of the crate `redis`, such as `read_routing_strategy`. The connections of waits have the
    /// settings of the first address. With certificates of its own, name them in both: `settings.certs(..)`, and addresses of
    /// clients that [`Client::build_with_tls`] has made.
    ///
    /// # Errors
    /// If an address is malformed, or the settings contradict each other.
    pub fn with<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
        settings: impl FnOnce(ClusterClientBuilder) -> ClusterClientBuilder,
    ) -> RedisResult<Self> {
        let nodes = nodes.into_iter().map(IntoConnectionInfo::into_connection_info).collect::<RedisResult<Vec<_>>>()?;
        secure();
        let none = || RedisError::from((ErrorKind::InvalidClientConfig, "a cluster needs the address of a node"));
        let node = nodes.first().cloned().ok_or_else(none)?;
        let builder = ClusterClient::builder(nodes).connection_timeout(TIMEOUT).response_timeout(NO_TIMEOUT);
        let client = settings(builder).retries(0).build()?;
        Ok(Self { client, node, shared: AsyncMutex::default(), slots: Mutex::default() })
    }

    /// The shared connection. The crate `redis` also waits for replies by itself, when it reads the slots again, so it needs a
    /// time-out: the patience of the most patient call so far. A time-out that the program has set holds besides.
    async fn shared(&self, patience: Duration) -> RedisResult<ClusterConnection> {
        let mut shared = self.shared.lock().await;
        match &*shared {
            Some((timeout, connection, home)) if *timeout >= patience && !home.is_gone() => Ok(connection.clone()),
            _ => {
                let timeout = patience.max(TIMEOUT);
                let config = ClusterConfig::new().set_response_timeout(timeout);
                let connection = self.client.get_async_connection_with_config(config).await?;
                *shared = Some((timeout, connection.clone(), Home::new()));
                Ok(connection)
            }
        }
    }

    async fn call_shared(&self, call: Call<'_>) -> RedisResult<Value> {
        let mut shared = self.shared(call.patience).await?;
        let mut redirections = 0;
        loop {
            let reply = routed(&mut shared, call).await;
            let Err(error) = &reply else { return reply };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Ask) => return self.asking(call, error).await,
                // In both cases no node has executed the call. The connection reads the slots again meanwhile.
                ErrorKind::Server(ServerErrorKind::Moved) | ErrorKind::ClusterConnectionNotFound
                    if redirections < REDIRECTIONS =>
                {
                    tokio::time::sleep(Duration::from_millis(5) * redirections).await;
                    redirections += 1;
                }
                _ => return reply,
            }
        }
    }

    /// Follows an `ASK`: the slot is on its way to another node, and this key is there already, or does not exist.
    async fn asking(&self, call: Call<'_>, error: &RedisError) -> RedisResult<Value> {
        let Some((host, port)) = self.redirection(error) else { return Err(error.clone()) };
        let mut connection = open(&self.at(host, port)?, call.patience, call.patience).await?;
        connection.send_packed_command(&cmd("ASKING")).await?.extract_error()?;
        connection.send_packed_command(call.command).await?.extract_error()
    }

    async fn wait(&self, call: Call<'_>, timeout: Duration) -> RedisResult<Value> {
        let mut known = self.known();
        let mut redirected = None;
        let mut redirections = 0;
        loop {
            let slots = match (&redirected, &known) {
                (Some(_), _) => None,
                (None, Some(slots)) => Some(slots.clone()),
                (None, None) => Some(self.read_slots(call.patience).await?),
            };
            let (host, port) = match (redirected.take(), slots) {
                (Some(node), _) => node,
                (None, slots) => owner(slots.as_deref(), call.key)?,
            };
            let opened = open(&self.at(host, port)?, call.patience, timeout).await;
            let mut connection = match opened {
                Ok(connection) => connection,
                // The node that had the slot may be gone. Nothing was sent.
                Err(_) if known.is_some() => {
                    known = None;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let reply = connection.send_packed_command(call.command).await.and_then(Value::extract_error);
            let Err(error) = &reply else { return reply };
            known = None;
            self.forget_slots();
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) if redirections < REDIRECTIONS => {
                    redirections += 1;
                    redirected = self.redirection(error);
                }
                ErrorKind::Server(ServerErrorKind::Ask) => return self.asking(call, error).await,
                _ => return reply,
            }
        }
    }

    /// The node that `MOVED` or `ASK` names. If it names no host, it means the host of the node that has replied.
    fn redirection(&self, error: &RedisError) -> Option<(String, u16)> {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        Some((self.host(host), port.parse().ok()?))
    }

    fn host(&self, host: &str) -> String {
        match (host, self.node.addr()) {
            ("" | "?", ConnectionAddr::Tcp(own, _) | ConnectionAddr::TcpTls { host: own, .. }) => own.clone(),
            _ => host.to_string(),
        }
    }

    /// A client of this node, with the settings of the first one.
    fn at(&self, host: String, port: u16) -> RedisResult<Client> {
        let address = match self.node.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(self.node.clone().set_addr(address))
    }

    fn known(&self) -> Option<Arc<Vec<Range>>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.as_ref().filter(|(read, _)| read.elapsed() < FRESH).map(|(_, slots)| slots.clone())
    }

    fn forget_slots(&self) {
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn read_slots(&self, patience: Duration) -> RedisResult<Arc<Vec<Range>>> {
        let mut command = cmd("CLUSTER");
        command.arg("SLOTS");
        let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let reply = self.shared(patience).await?.route_command(command, any).await?.extract_error()?;
        let slots = Arc::new(self.ranges(reply).ok_or_else(|| {
            RedisError::from((ErrorKind::UnexpectedReturnType, "the reply to CLUSTER SLOTS has another shape"))
        })?);
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), slots.clone()));
        Ok(slots)
    }

    fn ranges(&self, reply: Value) -> Option<Vec<Range>> {
        let slot = |value: &Value| match value {
            Value::Int(slot) => u16::try_from(*slot).ok(),
            _ => None,
        };
        let range = |range: Value| {
            let Value::Array(range) = range else { return None };
            let Value::Array(primary) = range.get(2)? else { return None };
            let host = match primary.first()? {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                Value::SimpleString(host) => host,
                _ => "",
            };
            Some(Range {
                first: slot(range.first()?)?,
                last: slot(range.get(1)?)?,
                host: self.host(host),
                port: slot(primary.get(1)?)?,
            })
        };
        match reply {
            Value::Array(ranges) => ranges.into_iter().map(range).collect(),
            _ => None,
        }
    }
}

fn owner(slots: Option<&Vec<Range>>, key: &[u8]) -> RedisResult<(String, u16)> {
    let slot = slot(key);
    let range = slots.into_iter().flatten().find(|range| (range.first..=range.last).contains(&slot));
    let range =
        range.ok_or_else(|| RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node has the slot of the key")))?;
    Ok((range.host.clone(), range.port))
}

async fn routed(connection: &mut ClusterConnection, call: Call<'_>) -> RedisResult<Value> {
    let role = if call.replica { SlotAddr::ReplicaOptional } else { SlotAddr::Master };
    let route = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::with_key(call.key, role)));
    connection.route_command(call.command.clone(), route).await?.extract_error()
}

impl Connection for Cluster {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        Box::pin(self.call_shared(call))
    }

    fn call_alone<'a>(&'a self, call: Call<'a>, timeout: Duration) -> Option<Answer<'a>> {
        Some(Box::pin(self.wait(call, timeout)))
    }

    fn client_for<'a>(&'a self, key: &'a [u8]) -> Option<Answer<'a, Client>> {
        Some(Box::pin(async move {
            let slots = match self.known() {
                Some(slots) => slots,
                None => self.read_slots(Duration::ZERO).await?,
            };
            let (host, port) = owner(Some(&slots), key)?;
            self.at(host, port)
        }))
    }

    fn has_slots(&self) -> bool {
        true
    }
}

impl Connection for ClusterConnection {
    fn call<'a>(&'a self, call: Call<'a>) -> Answer<'a> {
        let mut connection = self.clone();
        Box::pin(async move { routed(&mut connection, call).await })
    }

    fn has_slots(&self) -> bool {
        true
    }
}
