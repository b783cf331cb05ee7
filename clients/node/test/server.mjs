// Servers with the module, each in a private folder, and queries for the tests.
import { execFile, spawn, spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { performance } from 'node:perf_hooks';
import { after, before } from 'node:test';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';

const BUILT = fileURLToPath(new URL('../../../target/release/libredis_rl.so', import.meta.url));
const DEADLINE_MS = 30_000;
const HOST = '127.0.0.1';
const SERVER = process.env.REDIS_RL_SERVER ?? 'redis-server';

/** The servers that run. They end with the process, also when it is interrupted. */
const running = new Set();
const killAll = () => running.forEach((child) => child.kill('SIGKILL'));
process.on('exit', killAll);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.once(signal, () => {
    killAll();
    process.kill(process.pid, signal);
  });
}

/** The path of the module; fails if the file is missing. */
function built() {
  const module = resolve(process.env.REDIS_RL_MODULE ?? BUILT);
  if (!existsSync(module)) throw new Error(`${module} is missing: run \`make build\``);
  return module;
}

/** Starts a server in a private folder. `address` is the address for a client. */
async function start(options, address, { module = true, config } = {}) {
  const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
  const where = address(folder);
  const log = openSync(join(folder, 'log'), 'w');
  const all = config
    ? [await config(folder), '--sentinel']
    : ['--dir', folder, '--save', '', ...(module ? ['--loadmodule', built()] : []), ...options(folder)];
  const child = spawn(SERVER, all, { stdio: ['ignore', log, log] });
  running.add(child);
  closeSync(log);
  const exited = new Promise((done) => child.once('exit', done).once('error', done)).then(() => running.delete(child));
  let starting = true;
  let ending = false;
  // Such a test says only that it cannot connect: the server's own last words say why.
  child.once('exit', (status, signal) => {
    if (starting || ending) return;
    throw new Error(`a server ended by itself (${signal ?? status}):\n${readFileSync(join(folder, 'log'), 'utf8').slice(-8000)}`);
  });

  const server = {
    child,
    async kill() {
      ending = true;
      child.kill('SIGCONT');
      child.kill('SIGKILL');
      await exited;
    },
    async stop() {
      await server.kill();
      await rm(folder, { recursive: true });
    },
  };

  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const client = new Redis({ ...where, lazyConnect: true, retryStrategy: null, enableReadyCheck: !config });
    client.on('error', () => {});
    const up = await client.connect().then(() => true, () => false);
    client.disconnect();
    if (up) {
      starting = false;
      return Object.assign(server, where);
    }
    if (child.exitCode !== null || child.pid === undefined || Date.now() > deadline) {
      const text = await readFile(join(folder, 'log'), 'utf8');
      await server.stop();
      throw new Error(`the server did not start:\n${text}`);
    }
    await sleep(5);
  }
}

/**
 * Starts a server on a socket. Its `path` is the address for a client. Without `module`, it has not loaded the module. `at` is the
 * path of the socket, if the test chooses it.
 */
export function startServer({ module = true, at } = {}) {
  const path = (folder) => at ?? join(folder, 'server.sock');
  return start((folder) => ['--port', '0', '--unixsocket', path(folder)], (folder) => ({ path: path(folder) }), { module });
}

/**
 * Starts a server before the tests of a file or of a `describe`, and stops it after them. `assign` gets the server and a connection to
 * it.
 */
export function onServer(assign) {
  let server, admin;
  before(async () => {
    server = await startServer();
    admin = new Redis({ path: server.path });
    assign(server, admin);
  });
  after(async () => {
    admin?.disconnect();
    await server?.stop();
  });
}

/** Starts a server on a `port`. `empty` deletes all its keys. */
export async function startTcpServer() {
  const [port] = await freePorts(1);
  const server = await start(() => ['--port', port, '--bind', HOST], () => ({ host: HOST, port }));
  return Object.assign(server, {
    async empty() {
      const client = new Redis({ host: HOST, port });
      await client.flushall();
      client.disconnect();
    },
  });
}

/** Makes a certificate for this host, and one that has signed it: `ca` is its text, `options` are those of a server. */
export async function certificate() {
  const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
  const file = (name) => join(folder, name);
  const openssl = (...words) => promisify(execFile)('openssl', words);
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  await openssl('req', '-x509', ...key, '-keyout', file('ca.key'), '-out', file('ca.pem'), '-days', '2', '-subj', '/CN=tests');
  await openssl('req', ...key, '-keyout', file('key.pem'), '-out', file('request.pem'), '-subj', '/CN=localhost');
  await writeFile(file('names'), `subjectAltName=IP:${HOST},DNS:localhost\n`);
  const signed = ['-in', file('request.pem'), '-CA', file('ca.pem'), '-CAkey', file('ca.key'), '-CAcreateserial'];
  await openssl('x509', '-req', ...signed, '-extfile', file('names'), '-out', file('certificate.pem'), '-days', '2');
  return {
    ca: await readFile(file('ca.pem'), 'utf8'),
    options: [
      '--tls-cert-file', file('certificate.pem'), '--tls-key-file', file('key.pem'), '--tls-ca-cert-file', file('ca.pem'),
      '--tls-auth-clients', 'no',
    ],
    stop: () => rm(folder, { recursive: true }),
  };
}

/** Whether the server was built with TLS: without a certificate it ends at once, and says why. */
export function hasTls() {
  const { stdout, stderr } = spawnSync(SERVER, ['--port', '0', '--tls-port', '1', '--save', ''], { timeout: 20_000, encoding: 'utf8' });
  return !/Failed finding TLS support|Bad directive/.test(stdout + stderr);
}

/** Starts a server that speaks only TLS. */
export async function startTlsServer({ ca, options }) {
  const [port] = await freePorts(1);
  return start(() => ['--port', '0', '--tls-port', port, '--bind', HOST, ...options], () => ({ host: HOST, port, tls: { ca } }));
}

/** The slots of each of three primaries. */
const SHARES = [[0, 5460], [5461, 10922], [10923, 16383]];

/**
 * Starts a cluster of three primaries: `nodes` for a cluster client, and `each`, a client of each primary. With `replicas`, each
 * primary has a replica, and `replicas` are their clients in the same order. `tls` is a certificate.
 */
export async function startCluster({ tls, replicas = false } = {}) {
  const count = replicas ? 2 * SHARES.length : SHARES.length;
  const ports = await freePorts(2 * count);
  const secure = tls && { tls: { ca: tls.ca } };
  const all = ports.slice(0, count).map((port) => ({ host: HOST, port, ...secure }));
  const nodes = all.slice(0, SHARES.length).map(({ host, port }) => ({ host, port }));
  const buses = ports.slice(count);
  const clients = [];
  const servers = [];
  const each = [];
  const cluster = {
    nodes,
    each,
    replicas: [],
    /** Ends the primary that has a key, and lets its replica take over. Returns the client of the replica. */
    async failOver(key) {
      const at = each.indexOf(await cluster.nodeOf(key));
      await servers[at].kill();
      await cluster.replicas[at].call('CLUSTER', 'FAILOVER', 'TAKEOVER');
      await eventually(async () => /role:master/.test(await cluster.replicas[at].info('replication')));
      return cluster.replicas[at];
    },
    /** The client of the primary that has a key at first. */
    async nodeOf(key) {
      const slot = await each[0].cluster('KEYSLOT', key);
      return each[SHARES.findIndex(([, last]) => slot <= last)];
    },
    /** The number of calls that the nodes have redirected. */
    async moved() {
      const errors = await Promise.all(each.map((node) => node.info('errorstats')));
      return errors.reduce((sum, text) => sum + Number(text.match(/errorstat_MOVED:count=(\d+)/)?.[1] ?? 0), 0);
    },
    async stop() {
      for (const node of clients) node.disconnect();
      await Promise.all(servers.map((server) => server.stop()));
    },
  };
  try {
    const kind = ['--bind', HOST, '--cluster-enabled', 'yes', '--repl-diskless-sync-delay', '0', '--repl-ping-replica-period', '1'];
    if (tls) kind.push('--port', '0', '--tls-cluster', 'yes', '--tls-replication', 'yes', ...tls.options);
    // All at once. One that fails must not leave others behind.
    const started = await Promise.allSettled(all.map((node, index) => {
      const options = [...kind, tls ? '--tls-port' : '--port', node.port, '--cluster-port', buses[index]];
      return start(() => options, () => node);
    }));
    for (const { value } of started) if (value) servers.push(value);
    for (const { reason } of started) if (reason) throw reason;
    clients.push(...all.map((node) => new Redis(node).on('error', () => {})));
    each.push(...clients.slice(0, SHARES.length));
    cluster.replicas = clients.slice(SHARES.length);
    for (const [index, node] of clients.entries()) {
      if (index < SHARES.length) await node.call('CLUSTER', 'ADDSLOTSRANGE', ...SHARES[index]);
      await node.call('CLUSTER', 'MEET', HOST, nodes[0].port, buses[0]);
    }
    // Waits until each node knows all slots: a client that asked it earlier would miss some.
    const ready = (info) => /cluster_state:ok/.test(info) && /cluster_slots_ok:16384/.test(info);
    await eventually(async () => (await Promise.all(clients.map((node) => node.cluster('INFO')))).every(ready));
    for (const [index, node] of cluster.replicas.entries()) {
      await node.call('CLUSTER', 'REPLICATE', await each[index].cluster('MYID'));
    }
    await eventually(async () => {
      return (await Promise.all(cluster.replicas.map((node) => node.info('replication')))).every((info) => /master_link_status:up/.test(info));
    });
    // Each node tells clients of a replica only when it has heard that it has received something.
    const shown = (slots) => slots.every(([, , ...nodes]) => nodes.length === (replicas ? 2 : 1));
    await eventually(async () => (await Promise.all(clients.map((node) => node.cluster('SLOTS')))).every(shown));
    return cluster;
  } catch (error) {
    await cluster.stop();
    throw error;
  }
}

/** Starts a primary, a replica, and a sentinel that watches them: `sentinel` is its address, `failOver` ends the primary. */
export async function startSentinel() {
  const [primaryPort, replicaPort, port] = await freePorts(3);
  const servers = [];
  const clients = [];
  let watch;
  const set = {
    name: 'limits',
    sentinel: { host: HOST, port },
    nodes: [{ host: HOST, port: primaryPort }, { host: HOST, port: replicaPort }],
    clients,
    /** Kills the primary. The sentinel promotes the replica. */
    async failOver() {
      await servers[0].kill();
      await watch.call('SENTINEL', 'SET', set.name, 'down-after-milliseconds', 500);
    },
    async stop() {
      for (const client of clients) client.disconnect();
      await Promise.all(servers.map((server) => server.stop()));
    },
  };
  try {
    const fast = ['--bind', HOST, '--repl-diskless-sync-delay', '0'];
    servers.push(await start(() => [...fast, '--port', primaryPort], () => set.nodes[0]));
    servers.push(await start(() => [...fast, '--port', replicaPort, '--replicaof', HOST, primaryPort], () => set.nodes[1]));
    for (const node of set.nodes) clients.push(new Redis(node).on('error', () => {}));
    await eventually(async () => /master_link_status:up/.test(await clients[1].info('replication')));
    const lines = [
      `port ${port}`, `bind ${HOST}`, `sentinel monitor ${set.name} ${HOST} ${primaryPort} 1`,
      // Until `failOver`, a primary that is slow on a busy machine does not count as down.
      `sentinel down-after-milliseconds ${set.name} 600000`, `sentinel failover-timeout ${set.name} 5000`,
    ];
    const config = async (folder) => {
      const file = join(folder, 'sentinel.conf');
      await writeFile(file, [...lines, `dir ${folder}`, ''].join('\n'));
      return file;
    };
    servers.push(await start(undefined, () => set.sentinel, { config }));
    watch = new Redis({ ...set.sentinel, enableReadyCheck: false }).on('error', () => {});
    clients.push(watch);
    await eventually(async () => (await watch.call('SENTINEL', 'REPLICAS', set.name)).length === 1);
    return set;
  } catch (error) {
    await set.stop();
    throw error;
  }
}

/**
 * Ports of TCP that are free. As long as this process lives, it holds the same ports of UDP, so that no other test gets them before the
 * server has started, or while its restart takes time. They are below those that the system gives to outgoing connections.
 */
async function freePorts(count) {
  const ports = [];
  while (ports.length < count) {
    const port = randomInt(11_000, 31_000);
    const held = createSocket('udp4').unref();
    try {
      await once(held.bind({ port, address: HOST, exclusive: true }), 'listening');
      const listener = createServer().listen(port, HOST);
      await once(listener, 'listening');
      await once(listener.close(), 'close');
      ports.push(port);
    } catch {
      held.close();
    }
  }
  return ports;
}

/**
 * Starts a proxy to a server, which loses what a test says. `lose(what, command)` closes the connection on which this command
 * comes next: before it reaches the server ('request'), or when the server has answered it, without passing on the answer
 * ('reply'). With 'silence', the answer is dropped, and the connection stays open. `seen` counts the commands that came, `accepted` the connections.
 * `mute()` drops all answers from now on, `refuse(error)` answers all commands of the module by this error; `pass()` ends both.
 * `hold(command)` keeps back what comes next with this command, also when its client has closed the connection; it returns a
 * function that passes it on.
 */
export async function startProxy(server) {
  const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
  const path = join(folder, 'proxy.sock');
  const sockets = new Set();
  const toLose = [];
  const toHold = [];
  const lost = [];
  let received = '';
  let accepted = 0;
  let muted, refusal;
  const listener = createServer((client) => {
    accepted++;
    const upstream = connect(server.path);
    const close = () => [client, upstream].forEach((socket) => socket.destroy());
    let losing;
    let holding = false;
    for (const socket of [client, upstream]) sockets.add(socket.on('close', () => holding || close()).on('error', () => holding || close()));
    client.on('data', (data) => {
      received += data.toString('latin1');
      const refused = refusal ? data.toString('latin1').split(/\r\nRL\./).length - 1 : 0;
      if (refused) return client.write(`-${refusal}\r\n`.repeat(refused));
      const held = toHold.find(({ command }) => data.includes(command));
      if (held) {
        toHold.splice(toHold.indexOf(held), 1);
        holding = true;
        held.pass = () => upstream.write(data);
        return;
      }
      losing ??= toLose.find(([, command]) => data.includes(command));
      if (toLose.includes(losing)) toLose.splice(toLose.indexOf(losing), 1);
      if (losing?.[0] !== 'request') return upstream.write(data);
      lost.push(losing);
      close();
    });
    upstream.on('data', (data) => {
      if (muted) return;
      if (!losing) return client.write(data);
      if (!lost.includes(losing)) lost.push(losing);
      if (losing[0] === 'reply') close();
    });
  });
  await once(listener.listen(path), 'listening');
  return {
    path,
    lost,
    lose: (...loss) => toLose.push(loss),
    mute: () => (muted = true),
    refuse: (error) => (refusal = error),
    pass: () => (muted = refusal = undefined),
    hold(command) {
      const held = { command, pass: undefined };
      toHold.push(held);
      return { held: () => held.pass !== undefined, pass: () => held.pass() };
    },
    seen: (command) => received.split(command).length - 1,
    accepted: () => accepted,
    async stop() {
      for (const socket of sockets) socket.destroy();
      await once(listener.close(), 'close');
      await rm(folder, { recursive: true });
    },
  };
}

/** What RL.INSPECT says, by name; undefined for a missing key. */
export async function inspect(client, key) {
  const facts = await client.call('RL.INSPECT', key);
  return facts ? Object.fromEntries(facts.flatMap((name, at) => (at % 2 ? [] : [[name, facts[at + 1]]]))) : undefined;
}

/** The units in use on a key; 0 if it is missing. */
export async function used(client, key) {
  return (await inspect(client, key))?.used ?? 0;
}

/** Waits until a condition holds. */
export async function eventually(condition) {
  const deadline = Date.now() + DEADLINE_MS;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`waited for too long: ${condition}`);
    await sleep(5);
  }
}

/** Waits until a signal is aborted, also if it is already. */
export const aborted = (signal) => eventually(() => signal.aborted);

/** A number in INFO. */
export async function info(client, name) {
  return Number((await client.info('everything')).match(new RegExp(`^${name}:(\\d+)`, 'm'))[1]);
}

/**
 * Stops the clock that the package reads, but not its timers, until the test ends or `mock.restore()`: what is remembered for a short
 * time is remembered also on a machine that stands still for a while.
 */
export function stopClock(t) {
  const now = performance.now();
  return t.mock.method(performance, 'now', () => now);
}

/** Collects what the package logs in this process. `stop` ends that, and returns it. */
export function warnings() {
  const said = [];
  const add = ({ name, message }) => name === 'RateLimitWarning' && said.push(message);
  process.on('warning', add);
  return {
    said,
    async stop() {
      await setImmediate();
      process.off('warning', add);
      return said;
    },
  };
}

/** How often the server has executed a command. */
export async function stats(client, command) {
  const [, calls] = new RegExp(`^cmdstat_${command.replace('.', '\\.')}:calls=(\\d+)`, 'mi').exec(await client.info('commandstats')) ?? [];
  return Number(calls ?? 0);
}
