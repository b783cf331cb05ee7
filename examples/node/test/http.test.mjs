// Tests with real HTTP requests, because clients see the headers.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, beforeEach, test } from 'node:test';
import express from 'express';
import { rateLimit as expressRateLimit } from 'express-rate-limit';
import { Redis } from 'ioredis';
import { rateLimit } from '../rate-limit.mjs';
import { RedisRlStore } from '../store.mjs';
import { startServer } from './server.mjs';

const byUser = (request) => request.get('X-User');

let server;
let redis;

before(async () => {
  server = await startServer();
  redis = new Redis({ path: server.path });
});
after(async () => {
  redis?.disconnect();
  await server?.stop();
});
beforeEach(() => redis.flushall());

/** Serves these middlewares while `ask` runs. Its argument get(user) sends GET / as that user. */
async function serving(middlewares, ask) {
  const app = express();
  // Otherwise Express prints each error that it answers with.
  app.set('env', 'test');
  app.use(...middlewares);
  app.get('/', (request, response) => response.status(Number(request.get('X-Answer') ?? 200)).send('hello'));
  const http = app.listen(0, '127.0.0.1');
  await once(http, 'listening');
  const url = `http://127.0.0.1:${http.address().port}/`;
  try {
    await ask((user, headers) => fetch(url, { headers: { 'X-User': user, ...headers } }));
  } finally {
    http.closeAllConnections();
    http.close();
  }
}

const number = (response, header) => {
  assert.match(response.headers.get(header), /^\d+$/, header);
  return Number(response.headers.get(header));
};

test('granted and denied, with every header', async () => {
  const limit = rateLimit(redis, { algorithm: 'GCRA', limit: 2, period: 60, key: byUser });
  await serving([limit], async (get) => {
    for (const [status, remaining, t, reset] of [[200, 1, 30, 30], [200, 0, 60, 60], [429, 0, 30, 60]]) {
      const asked = Date.now() / 1000;
      const response = await get('ada');
      assert.equal(response.status, status);
      assert.equal(response.headers.get('RateLimit-Policy'), '"default";q=2;w=60');
      const quota = response.headers.get('RateLimit');
      const resetIn = Number(quota.match(`^"default";r=${remaining};t=(\\d+)$`)?.[1]);
      // Less than five seconds have passed since the first request.
      assert.ok(resetIn > t - 5 && resetIn <= t, quota);
      assert.equal(number(response, 'X-RateLimit-Limit'), 2);
      assert.equal(number(response, 'X-RateLimit-Remaining'), remaining);
      const seconds = number(response, 'X-RateLimit-Reset') - asked;
      assert.ok(seconds > reset - 5 && seconds < reset + 5, `${seconds}`);
      assert.equal(response.headers.get('Retry-After'), status === 429 ? String(resetIn) : null);
    }
    assert.equal((await get('bob')).status, 200);
  });
});

test('a retry after Retry-After is granted', async () => {
  const limit = rateLimit(redis, { algorithm: 'SLIDE', limit: 1, period: 0.3 * 3, key: byUser });
  await serving([limit], async (get) => {
    assert.equal((await get('ada')).status, 200);
    const denied = await get('ada');
    assert.equal(denied.status, 429);
    const seconds = number(denied, 'Retry-After');
    assert.equal(seconds, 1);
    await new Promise((done) => setTimeout(done, seconds * 1000));
    assert.equal((await get('ada')).status, 200);
  });
});

test('a cost, an option, and two limits of one route', async () => {
  const burst = { algorithm: 'BUCKET', limit: 10, period: 3600, options: ['CAPACITY', 5], key: byUser };
  const daily = { algorithm: 'FIXED', limit: 100, period: 86400, key: byUser, name: 'daily' };
  const cost = (request) => Number(request.get('X-Cost') ?? 1);
  await serving([rateLimit(redis, daily), rateLimit(redis, { ...burst, cost, name: 'burst' })], async (get) => {
    const granted = await get('ada', { 'X-Cost': '3' });
    assert.equal(granted.status, 200);
    assert.equal(granted.headers.get('RateLimit-Policy'), '"daily";q=100;w=86400, "burst";q=10;w=3600');
    assert.match(granted.headers.get('RateLimit'), /^"daily";r=99;t=86400, "burst";r=2;t=1080$/);
    assert.equal(number(granted, 'X-RateLimit-Limit'), 5);
    const never = await get('ada', { 'X-Cost': '6' });
    assert.equal(never.status, 429);
    assert.equal(never.headers.get('Retry-After'), null);
    assert.match(never.headers.get('RateLimit'), /"burst";r=2$/);
  });
});

test('two limits of one site with the same key count separately, by name', async () => {
  const policy = { algorithm: 'FIXED', period: 3600, key: byUser };
  const stack = [rateLimit(redis, { ...policy, limit: 3 }), rateLimit(redis, { ...policy, limit: 2, name: 'login' })];
  await serving(stack, async (get) => {
    for (const status of [200, 200, 429, 429]) assert.equal((await get('ada')).status, status);
    assert.deepEqual((await redis.keys('*')).sort(), ['limit:default:ada', 'limit:login:ada']);
  });
});

test('an error that key or cost throws does not count as Redis being down', async (context) => {
  const warnings = context.mock.method(console, 'warn', () => {});
  const policy = { algorithm: 'FIXED', limit: 1, period: 3600, key: byUser, onDown: 'open' };
  const fail = () => {
    throw Object.assign(new Error('no user'), { status: 401 });
  };
  const asked = (cost) => ({ ...policy, cost: () => cost });
  for (const [options, status] of [
    [{ ...policy, key: fail }, 401],
    [{ ...policy, key: async () => fail() }, 401],
    [{ ...policy, cost: fail }, 401],
    [asked(NaN), 500],
    [asked(0), 500],
    [asked(2e12), 500],
  ]) {
    await serving([rateLimit(redis, options)], async (get) => assert.equal((await get('ada')).status, status));
  }
  assert.equal(warnings.mock.callCount(), 0);
  await serving([rateLimit(redis, { ...policy, key: async (request) => byUser(request) })], async (get) => {
    for (const [user, status] of [['ada', 200], ['ada', 429], ['bob', 200]]) assert.equal((await get(user)).status, status);
  });
});

test('a period is a number', () => {
  for (const period of ['1m', '60', 0, -1, NaN, Infinity, undefined]) {
    assert.throws(() => rateLimit(redis, { algorithm: 'GCRA', limit: 1, period, key: byUser }), TypeError);
  }
});

test('many requests at once get no more than the limit', async () => {
  const limit = rateLimit(redis, { algorithm: 'FIXED', limit: 20, period: 3600, key: byUser });
  await serving([limit], async (get) => {
    const responses = await Promise.all(Array.from({ length: 60 }, () => get('ada')));
    assert.equal(responses.filter(({ status }) => status === 200).length, 20);
    assert.equal(responses.filter(({ status }) => status === 429).length, 40);
  });
});

test('express-rate-limit on the store', async () => {
  const store = new RedisRlStore(redis);
  const shown = { standardHeaders: 'draft-8', identifier: 'api' };
  const limit = { windowMs: 60_000, limit: 2, keyGenerator: byUser, skipFailedRequests: true };
  await serving([expressRateLimit({ ...limit, ...shown, store })], async (get) => {
    for (const [status, remaining] of [[200, 1], [200, 0], [429, 0]]) {
      const response = await get('ada');
      assert.equal(response.status, status);
      assert.match(response.headers.get('RateLimit'), new RegExp(`^"api"; r=${remaining}; t=(5\\d|60)$`));
      assert.match(response.headers.get('RateLimit-Policy'), /^"api"; q=2; w=60; pk=/);
      assert.equal(number(response, 'X-RateLimit-Limit'), 2);
      assert.equal(number(response, 'X-RateLimit-Remaining'), remaining);
      if (status === 429) assert.match(response.headers.get('Retry-After'), /^(5\d|60)$/);
    }
    // Failed requests are given back, also denied ones, because they had been counted.
    assert.equal((await get('bob', { 'X-Answer': '500' })).status, 500);
    for (const key of ['ada', 'bob']) {
      const hits = key === 'ada' ? 2 : 0;
      const deadline = Date.now() + 10_000;
      while ((await store.get(key)).totalHits !== hits) assert.ok(Date.now() < deadline, `${key} has not ${hits} hits`);
    }
    const ttl = await redis.pttl('store:60000:ada');
    assert.ok(ttl > 0 && ttl <= 60_000, `${ttl}`);
    await store.resetKey('ada');
    assert.equal((await get('ada')).status, 200);
  });
});

test('stores with different windows, or with different prefixes, count separately', async (context) => {
  const errors = context.mock.fn();
  const logger = { error: errors, warn: errors };
  const limit = { limit: 1, keyGenerator: byUser, logger };
  const stack = [
    expressRateLimit({ ...limit, windowMs: 3_600_000, store: new RedisRlStore(redis) }),
    expressRateLimit({ ...limit, windowMs: 60_000, store: new RedisRlStore(redis) }),
    expressRateLimit({ ...limit, windowMs: 60_000, store: new RedisRlStore(redis, { prefix: 'mine:' }) }),
    rateLimit(redis, { algorithm: 'GCRA', limit: 1, period: 60, key: byUser }),
  ];
  await serving(stack, async (get) => {
    for (const status of [200, 429]) assert.equal((await get('ada')).status, status);
    const keys = ['limit:default:ada', 'mine:ada', 'store:3600000:ada', 'store:60000:ada'];
    assert.deepEqual((await redis.keys('*')).sort(), keys);
    assert.equal(errors.mock.callCount(), 0, 'express-rate-limit takes none of them for counted twice');
  });
});

test('when Redis is down: closed or open', async (context) => {
  const other = await startServer();
  // Long enough for a reply on a busy machine.
  const options = { commandTimeout: 1000, autoResendUnfulfilledCommands: false };
  const client = new Redis({ path: other.path, ...options });
  client.on('error', () => {});
  const warnings = context.mock.method(console, 'warn', () => {});
  const policy = { algorithm: 'GCRA', limit: 1, period: 3600, key: byUser };
  const logger = { error() {}, warn() {} };
  const stored = (onDown) =>
    expressRateLimit({ limit: 1, keyGenerator: byUser, store: new RedisRlStore(client), logger, ...onDown });
  try {
    // First the server hangs, then it is killed.
    for (const fail of [() => other.child.kill('SIGSTOP'), () => other.kill()]) {
      await client.flushall();
      await serving([rateLimit(client, policy)], async (get) => assert.equal((await get('ada')).status, 200));
      fail();
      for (const [middleware, status] of [
        [rateLimit(client, policy), 503],
        [rateLimit(client, { ...policy, onDown: 'open' }), 200],
        [stored({ passOnStoreError: false }), 500],
        [stored({ passOnStoreError: true }), 200],
      ]) {
        await serving([middleware], async (get) => {
          // A request waits only for the command time-out. Without one it would wait for ever.
          assert.equal((await get('ada')).status, status);
        });
      }
      other.child.kill('SIGCONT');
    }
    assert.match(warnings.mock.calls[0].arguments[0], /^\/ goes on uncounted: /);
    assert.throws(() => rateLimit(client, { ...policy, onDown: 'maybe' }), TypeError);
  } finally {
    client.disconnect();
    await other.stop();
  }
});
