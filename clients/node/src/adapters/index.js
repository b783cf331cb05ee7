import { ioredisAdapter } from './ioredis.js';
import { nodeRedisAdapter } from './node-redis.js';
import { valkeyGlideAdapter } from './valkey-glide.js';

/** @typedef {import('./adapter.js').Adapter} Adapter */

/**
 * A client of ioredis (`Redis`, `Cluster`), of node-redis (`createClient`, `createCluster`, `createSentinel`) or of
 * valkey-glide (`GlideClient`, `GlideClusterClient`).
 *
 * @typedef {{ sendCommand(...args: any[]): any } | { customCommand(...args: any[]): any }} Client
 */

/** @type {WeakMap<object, Adapter>} */
const adapters = new WeakMap();

/**
 * The adapter for a client, which is found by the client's methods.
 *
 * @param {Client} client
 * @returns {Adapter}
 */
export function adapterOf(client) {
  let adapter = adapters.get(client);
  if (!adapter) adapters.set(client, (adapter = made(client)));
  return adapter;
}

/** @param {any} client */
function made(client) {
  if (typeof client?.sendCommand === 'function') {
    if (typeof client.call === 'function') return ioredisAdapter(client);
    const parts = ['duplicate', 'nodeClient', 'getMasterNode'];
    if (parts.some((name) => typeof client[name] === 'function')) return nodeRedisAdapter(client);
  }
  const isGlide = typeof client?.customCommand === 'function' && typeof client.constructor.createClient === 'function';
  if (isGlide && client.config) return valkeyGlideAdapter(client);
  throw new TypeError(
    'the client must be a Redis or a Cluster of ioredis, a client, a cluster or a sentinel client of node-redis, or a client ' +
      'or a cluster client of valkey-glide',
  );
}
