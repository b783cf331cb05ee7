// The clients with which the tests run: versions of ioredis and node-redis, with the protocols RESP2 and RESP3, and valkey-glide.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { after } from 'node:test';
import * as glide from '@valkey/valkey-glide';
import * as ioredis5 from 'ioredis';
import Redis50 from 'ioredis-5.0';
import * as redis4 from 'redis-4';
import * as redis5 from 'redis';

const newer = Number(process.versions.node.split('.')[0]) >= 20;
// These versions need Node.js 20.
const ioredis6 = newer ? await import('ioredis-6') : undefined;
const redis6 = newer ? await import('redis-6') : undefined;

/**
 * For each client: `single(path, options)`, `cluster(nodes)`, `sentinel(set)` and `pool(path)` connect one, and return what `Limits` takes
 * as its client, and `close`. `tls(server)` and `tlsCluster(nodes, ca)` do so by TLS. `down(path)` does not wait for a connection.
 */
export const CLIENTS = Object.fromEntries([
  ['ioredis 5', ioredis(ioredis5)],
  ['ioredis 5.0', ioredis({ Redis: Redis50, Cluster: Redis50.Cluster })],
  ['ioredis 6', ioredis6 && ioredis(ioredis6)],
  ['node-redis 4', nodeRedis(redis4, {})],
  ['node-redis 5, RESP2', nodeRedis(redis5, { RESP: 2 })],
  ['node-redis 5, RESP3', nodeRedis(redis5, { RESP: 3 })],
  ['node-redis 6, RESP2', redis6 && nodeRedis(redis6, { RESP: 2 })],
  ['node-redis 6, RESP3', redis6 && nodeRedis(redis6, { RESP: 3 })],
  ['valkey-glide 2', valkeyGlide(glide)],
].filter(([, client]) => client));

/** One of each library: the versions for which the other tests are. */
export const EACH = ['ioredis 5', 'node-redis 5, RESP3', 'valkey-glide 2'].map((name) => [name, CLIENTS[name]]);

function ioredis({ Redis, Cluster }) {
  const opened = (client) => {
    client.on('error', () => {});
    return { client, close: () => client.disconnect() };
  };
  return {
    single: async (path, options = {}) => opened(new Redis({ path, ...options })),
    async cluster(nodes, options = {}) {
      const client = new Cluster(nodes, options);
      await client.set('known', 1);
      return opened(client);
    },
    sentinel: async ({ sentinel, name }, options = {}) => opened(new Redis({ sentinels: [sentinel], name, ...options })),
    down: async (path) => opened(new Redis({ path })),
    tls: async ({ host, port, tls }) => opened(new Redis({ host, port, tls })),
    tlsCluster: (nodes, ca) => opened(new Cluster(nodes, { redisOptions: { tls: { ca } } })),
  };
}

function nodeRedis(module, protocol) {
  const opened = async (client) => {
    client.on('error', () => {});
    await client.connect();
    return { client, close: () => closeNodeRedis(client) };
  };
  return {
    single: (path, { socket, ...options } = {}) => opened(module.createClient({ ...protocol, ...options, socket: { path, ...socket } })),
    pool: module.createClientPool && ((path) => opened(module.createClientPool({ ...protocol, socket: { path } }))),
    cluster(nodes, options = {}) {
      const rootNodes = nodes.map(({ host, port }) => ({ socket: { host, port } }));
      return opened(module.createCluster({ ...protocol, rootNodes, ...options }));
    },
    sentinel: module.createSentinel && (async ({ sentinel, name }) => {
      const options = { ...protocol, name, sentinelRootNodes: [sentinel], maxCommandRediscovers: 0 };
      return making(() => module.createSentinel(options), (client) => client.isOpen && client.destroy());
    }),
    tls: ({ host, port, tls }) => opened(module.createClient({ ...protocol, socket: { host, port, tls: true, ...tls } })),
    tlsCluster(nodes, ca) {
      const rootNodes = nodes.map(({ host, port }) => ({ socket: { host, port } }));
      return opened(module.createCluster({ ...protocol, rootNodes, defaults: { socket: { tls: true, ca } } }));
    },
    async down(path) {
      const client = module.createClient({ ...protocol, socket: { path } });
      client.on('error', () => {});
      client.connect().catch(() => {});
      return { client, close: () => closeNodeRedis(client) };
    },
  };
}

async function closeNodeRedis(client) {
  if (typeof client.destroy === 'function') {
    if (client.isOpen) await client.destroy();
    return;
  }
  await client.disconnect().catch(() => {});
}

/** A function that makes clients, which all end with `close`. */
function making(make, end, closed = () => {}) {
  const made = [];
  let isClosed = false;
  return {
    client(options) {
      const client = make(options);
      if (isClosed) Promise.resolve(client).then(end, () => {});
      made.push(client);
      return client;
    },
    async close() {
      isClosed = true;
      for (const { value } of await Promise.allSettled(made)) if (value) await end(value);
      closed();
    },
  };
}

// valkey-glide can keep the process alive after the last test: its `close` leaves a connection open while a call is under way.
after(() => { setTimeout(() => process.exit(), 10_000).unref(); });

function valkeyGlide({ GlideClient, GlideClusterClient, Logger }) {
  Logger.init('off');
  // The client knows no sockets of files, so the test passes on what it sends to a port.
  const throughPort = async (path) => {
    const sockets = new Set();
    const bridge = createServer((one) => {
      const other = connect(path);
      for (const [from, to] of [[one, other], [other, one]]) {
        sockets.add(from);
        from.on('error', () => {}).on('close', () => to.destroy()).pipe(to);
      }
    });
    await once(bridge.listen(0, '127.0.0.1'), 'listening');
    const addresses = [{ host: '127.0.0.1', port: bridge.address().port }];
    const close = () => {
      for (const socket of sockets) socket.destroy();
      bridge.close();
    };
    return making((options) => GlideClient.createClient({ addresses, ...options }), (client) => client.close(), close);
  };
  const secure = (Class, addresses, ca) => {
    const advancedConfiguration = { tlsAdvancedConfiguration: { rootCertificates: ca } };
    return making((options) => Class.createClient({ addresses, useTLS: true, advancedConfiguration, ...options }), (client) => client.close());
  };
  return {
    single: throughPort,
    cluster: async (nodes) =>
      making((options) => GlideClusterClient.createClient({ addresses: nodes, ...options }), (client) => client.close()),
    down: throughPort,
    tls: async ({ host, port, tls }) => secure(GlideClient, [{ host, port }], tls.ca),
    tlsCluster: async (nodes, ca) => secure(GlideClusterClient, nodes, ca),
    // A function makes its clients.
    made: true,
  };
}
