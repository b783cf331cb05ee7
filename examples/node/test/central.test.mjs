// Changes limits that live in a hash on the server, on a single server and in a cluster.
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { Cluster, Redis } from 'ioredis';
import { inspect, onServer, startCluster } from '../../../clients/node/test/server.mjs';
import { CentralLimits } from '../central-limits.mjs';

const DEFAULTS = { api: 'GCRA 10 1m' };

let server;
let redis;
let logged;

onServer((started, connection) => ([server, redis] = [started, connection]));
beforeEach(() => {
  logged = [];
  return redis.flushall();
});

/** Reads the hash at each call. */
const always = () => new CentralLimits(redis, DEFAULTS, { everyMs: 0, timeout: 20, log: (message) => logged.push(message) });
/** Takes units of the limit that is in force. */
const take = async (limits, name, key, cost) => (await limits.get(name)).take(key, cost);

test('the default is in force until the hash names a policy', async () => {
  const limits = always();
  const { granted, limit, remaining, waitMs, resetMs } = await take(limits, 'api', 'user:42');
  assert.deepEqual([granted, limit, remaining, waitMs, resetMs], [1, 10, 9, 0, 6000]);
  await redis.hset('limits', 'api', 'gcra  5 1m burst 7');
  // The unit in use is carried over.
  assert.equal((await take(limits, 'api', 'user:42', 2)).remaining, 4);
  assert.equal((await inspect(redis, 'limit:api.gcra:user:42')).limit, 5);
  await assert.rejects(take(limits, 'uploads', 'user:42'), RangeError);
  await redis.hset('limits', 'uploads', 'FIXED 2 1d');
  assert.equal((await take(limits, 'uploads', 'user:42')).limit, 2);
  assert.deepEqual(logged, []);
});

test('a change of the algorithm begins on a key of its own', async () => {
  const limits = always();
  await take(limits, 'api', 'user:42');
  await redis.hset('limits', 'api', 'SLIDE 10 1m');
  assert.equal((await take(limits, 'api', 'user:42')).remaining, 9);
  assert.deepEqual((await redis.keys('limit:*')).sort(), ['limit:api.gcra:user:42', 'limit:api.slide:user:42']);
});

for (const malformed of ['', 'GCRA', 'TOKENS 10 60', 'LEASE 10 60', 'GCRA ten 60', 'GCRA 10 60 COST 2', 'GCRA 10 60 BLOCK 5', 'GCRA 10 60 BURST', 'BUCKET 10 60 CAPACITY x']) {
  test(`a malformed policy is not used, and is logged once: '${malformed}'`, async () => {
    const limits = always();
    await redis.hset('limits', 'api', 'GCRA 20 1m', 'uploads', 'FIXED 2 1d');
    await take(limits, 'api', 'user:42');
    await redis.hset('limits', 'api', malformed, 'uploads', 'FIXED 3 1d');
    for (let n = 0; n < 3; n += 1) assert.equal((await take(limits, 'api', 'user:42')).limit, 20);
    assert.equal((await take(limits, 'uploads', 'user:42')).limit, 3);
    assert.equal(logged.length, 1);
    assert.match(logged[0], /of api is not used/);
    await redis.hset('limits', 'api', 'GCRA 30 1m');
    assert.equal((await take(limits, 'api', 'user:42')).limit, 30);
  });
}

test('a missing policy leaves the last one in force', async () => {
  const limits = always();
  await redis.hset('limits', 'api', 'GCRA 20 1m');
  await take(limits, 'api', 'user:42');
  await redis.del('limits');
  for (let n = 0; n < 3; n += 1) assert.equal((await take(limits, 'api', 'user:42')).limit, 20);
  await redis.rpush('limits', 'not a hash');
  for (let n = 0; n < 3; n += 1) assert.equal((await take(limits, 'api', 'user:42')).limit, 20);
  assert.equal(logged.length, 2);
  assert.match(logged[0], /no policy of api any more/);
  assert.match(logged[1], /can't be read/);
});

test('calls that begin together read the hash once, and use what they read', async () => {
  const limits = new CentralLimits(redis, DEFAULTS, { everyMs: 3_600_000, timeout: 20 });
  await redis.hset('limits', 'api', 'GCRA 20 1m');
  await redis.config('RESETSTAT');
  const replies = await Promise.all(Array.from({ length: 5 }, () => take(limits, 'api', 'user:42')));
  assert.deepEqual(replies.map(({ limit }) => limit), Array(5).fill(20));
  await take(limits, 'api', 'user:42');
  assert.match(await redis.info('commandstats'), /cmdstat_hgetall:calls=1,/);
});

test('without a server', async () => {
  const down = new Redis({ path: `${server.path}.missing`, lazyConnect: true, retryStrategy: null, enableOfflineQueue: false });
  down.on('error', () => {});
  const limits = new CentralLimits(down, DEFAULTS, { everyMs: 0, log: (message) => logged.push(message) });
  for (let n = 0; n < 2; n += 1) await assert.rejects(take(limits, 'api', 'user:42'));
  down.disconnect();
  assert.equal(logged.length, 1);
  assert.match(logged[0], /can't be read/);
});

test('a lost connection loses no change', async () => {
  const limits = always();
  await take(limits, 'api', 'user:42');
  const other = new Redis({ path: server.path });
  try {
    await other.hset('limits', 'api', 'GCRA 20 1m');
    await other.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
  } finally {
    other.disconnect();
  }
  assert.equal((await take(limits, 'api', 'user:42')).limit, 20);
});

test('in a cluster, each call goes to the node that has its key', async () => {
  const cluster = await startCluster();
  const client = new Cluster(cluster.nodes);
  try {
    await client.hset('limits', 'api', 'GCRA 20 1m');
    const before = await cluster.moved();
    const limits = new CentralLimits(client, DEFAULTS, { everyMs: 0, timeout: 20 });
    const keys = Array.from({ length: 30 }, (_, n) => `user:${n}`);
    for (const key of keys) assert.equal((await take(limits, 'api', key)).limit, 20);
    assert.equal(await cluster.moved(), before);
  } finally {
    client.disconnect();
    await cluster.stop();
  }
});
