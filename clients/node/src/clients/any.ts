import type { Client } from './client.js';
import { ioredisClient } from './ioredis.js';
import { madeClient } from './made.js';
import { nodeRedisClient } from './node-redis.js';

/**
 * A client of ioredis (`Redis`, `Cluster`), of node-redis (`createClient`, `createCluster`, `createClientPool`); or a function that
 * makes one of valkey-glide, or one of node-redis for Sentinel (`createSentinel`).
 */
export type AnyClient =
  | { duplicate(...args: any[]): any }
  | { execute(...args: any[]): any }
  | ((options: { requestTimeout: number }) => any);

/** The client, which is known by its methods. */
export function clientOf(client: any): Client {
  if (typeof client === 'function') return madeClient(client);
  if (typeof client?.duplicate === 'function') {
    return typeof client.call === 'function' ? ioredisClient(client) : nodeRedisClient(client);
  }
  if (typeof client?.execute === 'function' && typeof client.sendCommand === 'function') return nodeRedisClient(client);
  if (typeof client?.customCommand === 'function' || typeof client?.getMasterNode === 'function') {
    throw new TypeError(
      'this client can open no second connection, so give a function that makes one: ' +
        'new Limits((options) => GlideClient.createClient({ addresses, ...options })), or ' +
        'new Limits(() => createSentinel({ name, sentinelRootNodes, maxCommandRediscovers: 0 }))',
    );
  }
  throw new TypeError(
    'the client must be a Redis or a Cluster of ioredis, a client, a cluster or a pool of node-redis, or a function that makes a ' +
      'client of valkey-glide or a Sentinel client of node-redis',
  );
}
