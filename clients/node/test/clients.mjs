// The clients with which the tests run: versions of ioredis and node-redis, with the protocols RESP2 and RESP3, and valkey-glide.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import * as glide from '@valkey/valkey-glide';
import * as ioredis5 from 'ioredis';
import * as redis4 from 'redis-4';
import * as redis5 from 'redis';

const newer = Number(process.versions.node.split('.')[0]) >= 20;
// These versions need Node.js 20.
const ioredis6 = newer ? await import('ioredis-6') : undefined;
const redis6 = newer ? await import('redis-6') : undefined;

/**
 * For each client: `single(path, options)`, `cluster(nodes)` and `sentinel(set)` connect one, and return the client and `close`.
 * `tls(server)` and `tlsCluster(nodes, ca)` do so by TLS. `readsReplicas` are the options with which `cluster` reads from replicas.
 * `sendsLate` and `tracks` are set where a client differs.
 */
export const CLIENTS = Object.fromEntries([
  ['ioredis 5', ioredis(ioredis5)],
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

/** The libraries that can do everything. */
export const MAIN = EACH.slice(0, 2);

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
    readsReplicas: { scaleReads: 'slave' },
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
    cluster(nodes, options = {}) {
      const rootNodes = nodes.map(({ host, port }) => ({ socket: { host, port } }));
      return opened(module.createCluster({ ...protocol, rootNodes, ...options }));
    },
    sentinel: module.createSentinel && (({ sentinel, name }, options = {}) => {
      return opened(module.createSentinel({ ...protocol, name, sentinelRootNodes: [sentinel], ...options }));
    }),
    tls: ({ host, port, tls }) => opened(module.createClient({ ...protocol, socket: { host, port, tls: true, ...tls } })),
    tlsCluster(nodes, ca) {
      const rootNodes = nodes.map(({ host, port }) => ({ socket: { host, port } }));
      return opened(module.createCluster({ ...protocol, rootNodes, defaults: { socket: { tls: true, ca } } }));
    },
    readsReplicas: { useReplicas: true },
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

function valkeyGlide({ GlideClient, GlideClusterClient, Logger }) {
  Logger.init('off');
  // The default is 250 ms, which is too short on a busy machine.
  const patient = { requestTimeout: 60_000 };
  // The client knows no sockets of files, so the test passes on what it sends to a port.
  const throughPort = async (path, options) => {
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
    const client = await GlideClient.createClient({ addresses, ...patient, ...options });
    const close = () => {
      client.close();
      for (const socket of sockets) socket.destroy();
      bridge.close();
    };
    return { client, close };
  };
  const secure = async (Class, addresses, ca) => {
    const advancedConfiguration = { tlsAdvancedConfiguration: { rootCertificates: ca } };
    const client = await Class.createClient({ addresses, ...patient, useTLS: true, advancedConfiguration });
    return { client, close: () => client.close() };
  };
  return {
    single: (path, { commandTimeout } = {}) => throughPort(path, commandTimeout && { requestTimeout: commandTimeout }),
    async cluster(nodes, options = {}) {
      const client = await GlideClusterClient.createClient({ addresses: nodes, ...patient, ...options });
      return { client, close: () => client.close() };
    },
    down: (path) => throughPort(path, { lazyConnect: true }),
    tls: ({ host, port, tls }) => secure(GlideClient, [{ host, port }], tls.ca),
    tlsCluster: (nodes, ca) => secure(GlideClusterClient, nodes, ca),
    readsReplicas: { readFrom: 'preferReplica' },
    // It sends late what was given up, and does not report changes of keys.
    sendsLate: true,
    tracks: false,
  };
}
