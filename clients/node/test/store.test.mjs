// Tests the store for express-rate-limit. The cases are those of the stores' own tests: test/store-test.ts of rate-limit-redis 6,
// and test/library/memory-store-test.ts and test/library/middleware-test.ts of express-rate-limit 8. What counts is what the
// server says. These cases have no counterpart here:
//
// * "default export works", "should bind sendCommand to this", "should bind sendCommandCluster to this" of rate-limit-redis: the
//   store takes a client, and has neither a default export nor a function that sends commands.
// * "clears the timer when shutdown is called", "can run in electron ..." of the memory store: the store has no timer.
// * "legacy" and "compat" stores of the middleware's tests: the store has the present interface only.
// * resetAll and resetExpiryOnChange: the store has neither. resetKey gives back what was counted, and the window goes on.
// * "when PTTL==0 but key exists": the module decides by the end of the window that is in the value, and not by the key's expiry.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { RedisRlStore } from '../dist/express-rate-limit.js';
import { Gcra, Limits } from '../dist/index.js';
import { EACH } from './clients.mjs';
import { eventually, onServer, used } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
const HOUR = 3_600_000;
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

/** Serves an Express app with this middleware, and runs `use`, which gets a function that makes a request for a user. */
async function serving(middleware, use) {
  const app = express();
  app.set('env', 'test');
  app.use(middleware);
  app.get('/', (request, response) => response.send('hello'));
  app.get('/error', (request, response) => response.status(400).send('wrong'));
  app.get('/crash', (request, response) => response.emit('error', new Error('a crash')) && response.end());
  const http = app.listen(0, '127.0.0.1');
  await once(http, 'listening');
  try {
    await use((user, path = '/') => fetch(`http://127.0.0.1:${http.address().port}${path}`, { headers: { 'X-User': user } }));
  } finally {
    http.closeAllConnections();
    http.close();
  }
}

const byUser = (request) => request.get('X-User');
const pttl = (key) => admin.pttl(key);

for (const [name, { single, down }] of EACH) {
  describe(name, () => {
    let client, close, limits;
    before(async () => {
      ({ client, close } = await single(server.path));
      limits = new Limits(client, PATIENT);
    });
    after(async () => {
      await limits?.close();
      await close?.();
    });

    const storeOf = (windowMs, options) => {
      const store = new RedisRlStore(limits, options);
      store.init({ windowMs });
      return store;
    };

    test('a prefix of its own', async () => {
      await storeOf(HOUR, { name: 'test' }).increment('store');
      assert.equal(await used(admin, 'test:store'), 1);
      const expiry = await pttl('test:store');
      // The server rounds the key's deadline up to a millisecond, and the present time down.
      assert.ok(expiry > HOUR - 60_000 && expiry <= HOUR + 1, String(expiry));
      const shop = new Limits(client, { ...PATIENT, prefix: 'shop:' });
      const other = new RedisRlStore(shop);
      other.init({ windowMs: HOUR });
      await other.increment('store');
      await shop.close();
      assert.equal(await used(admin, 'shop:store-3600000:store'), 1);
      assert.equal(other.prefix, 'store-3600000:');
      assert.equal(other.localKeys, false);
    });

    test('the first increment makes 1, and the next one 2, with a date', async () => {
      const store = storeOf(HOUR);
      const first = await store.increment('key');
      assert.equal(first.totalHits, 1);
      const left = first.resetTime.getTime() - Date.now();
      assert.ok(left > HOUR - 60_000 && left <= HOUR, String(left));
      assert.equal((await store.increment('key')).totalHits, 2);
      assert.equal(await used(admin, 'store-3600000:key'), 2);
      const { totalHits, resetTime } = await store.get('key');
      assert.deepEqual([totalHits, resetTime instanceof Date], [2, true]);
      assert.equal((await store.get('unknown')).totalHits, 0);
    });

    test('decrement gives back, and not below 0', async () => {
      const store = storeOf(HOUR);
      for (let n = 0; n < 2; n++) await store.increment('key');
      await store.decrement('key');
      assert.equal((await store.increment('key')).totalHits, 2);
      for (let n = 0; n < 5; n++) await store.decrement('key');
      assert.equal((await store.get('key')).totalHits, 0);
    });

    test('resetKey forgets the count', async () => {
      const store = storeOf(HOUR);
      for (let n = 0; n < 2; n++) await store.increment('key');
      await store.resetKey('key');
      assert.equal((await store.get('key')).totalHits, 0);
      assert.equal((await store.increment('key')).totalHits, 1);
    });

    test('when the window ends, all counts are forgotten, and a new window begins with 1', async () => {
      const store = storeOf(300);
      for (const key of ['one', 'two', 'two']) await store.increment(key);
      await eventually(async () => (await admin.dbsize()) === 0);
      for (const key of ['one', 'two']) {
        const before = Date.now();
        const { totalHits, resetTime } = await store.increment(key);
        assert.equal(totalHits, 1);
        assert.ok(resetTime.getTime() > before);
      }
    });

    test('the middleware increments, and shows hits and limit to the next handler', async () => {
      const store = new RedisRlStore(limits);
      const seen = [];
      const limiter = rateLimit({ windowMs: HOUR, limit: 2, keyGenerator: byUser, standardHeaders: 'draft-8', identifier: 'api', store });
      await serving([limiter, (request, response, next) => (seen.push(request.rateLimit), next())], async (get) => {
        for (const [status, remaining] of [[200, 1], [200, 0], [429, 0]]) {
          const response = await get('ada');
          assert.equal(response.status, status);
          assert.match(response.headers.get('RateLimit'), new RegExp(`^"api"; r=${remaining}; t=3[56]\\d\\d$`));
          assert.match(response.headers.get('RateLimit-Policy'), /^"api"; q=2; w=3600; pk=/);
          assert.equal(response.headers.get('X-RateLimit-Remaining'), String(remaining));
          if (status === 429) assert.match(response.headers.get('Retry-After'), /^3[56]\d\d$/);
        }
        assert.deepEqual(seen.map(({ limit, used, remaining }) => [limit, used, remaining]), [[2, 1, 1], [2, 2, 0]]);
        assert.equal((await limiter.getKey('ada')).totalHits, 3);
        await limiter.resetKey('ada');
        assert.equal((await get('ada')).status, 200);
        assert.equal((await get('bob')).status, 200);
      });
    });

    test('many requests at once get no more than the limit', async () => {
      const limiter = rateLimit({ windowMs: HOUR, limit: 20, keyGenerator: byUser, store: new RedisRlStore(limits) });
      await serving([limiter], async (get) => {
        const all = await Promise.all(Array.from({ length: 60 }, () => get('ada')));
        assert.equal(all.filter(({ status }) => status === 200).length, 20);
        assert.equal(all.filter(({ status }) => status === 429).length, 40);
      });
    });

    const fine = { skipSuccessfulRequests: true };
    const failed = { skipFailedRequests: true };
    const custom = { requestWasSuccessful: (request) => request.query.success === '1' };
    for (const [what, options, path, hits] of [
      ['skipSuccessfulRequests: a success', fine, '/', 0],
      ['skipSuccessfulRequests: a failure', fine, '/error', 1],
      ['skipSuccessfulRequests and requestWasSuccessful: a success', { ...fine, ...custom }, '/?success=1', 0],
      ['skipSuccessfulRequests and requestWasSuccessful: a failure', { ...fine, ...custom }, '/?success=0', 1],
      ['skipFailedRequests: a failure', failed, '/error', 0],
      ['skipFailedRequests: a success', failed, '/', 1],
      ['skipFailedRequests: an error of the response', failed, '/crash', 0],
    ]) {
      test(`${what} leaves ${hits}`, async () => {
        const store = new RedisRlStore(limits);
        let decrements = 0;
        const { decrement } = store;
        store.decrement = (key) => decrement.call(store, key).finally(() => decrements++);
        await serving([rateLimit({ windowMs: HOUR, limit: 5, keyGenerator: byUser, store, ...options })], async (get) => {
          await get('ada', path);
          await eventually(() => decrements >= 1 - hits);
          assert.equal(await used(admin, 'store-3600000:ada'), hits);
        });
      });
    }

    test('skipFailedRequests gives back a denied request, too', async () => {
      const store = new RedisRlStore(limits);
      await serving([rateLimit({ windowMs: HOUR, limit: 2, keyGenerator: byUser, store, ...failed })], async (get) => {
        for (const status of [200, 200, 429]) assert.equal((await get('ada')).status, status);
        await eventually(async () => (await used(admin, 'store-3600000:ada')) === 2);
      });
    });

    test('errors of a handler and of skip reach the error handler', async () => {
      const fail = () => {
        throw new Error('calm');
      };
      const middleware = (options) => rateLimit({ windowMs: HOUR, limit: 1, keyGenerator: byUser, store: new RedisRlStore(limits), ...options });
      await serving([middleware({ handler: fail })], async (get) => {
        for (const status of [200, 500]) assert.equal((await get('ada')).status, status);
      });
      await serving([middleware({ skip: fail })], async (get) => assert.equal((await get('ada')).status, 500));
    });

    test('stores with different windows, or with different names, count separately', async () => {
      const errors = [];
      const logger = { error: (...words) => errors.push(words), warn: (...words) => errors.push(words) };
      const limiter = (windowMs, name) => {
        return rateLimit({ limit: 1, keyGenerator: byUser, logger, windowMs, store: new RedisRlStore(limits, { name }) });
      };
      await serving([limiter(HOUR), limiter(60_000), limiter(60_000, 'mine')], async (get) => {
        for (const status of [200, 429]) assert.equal((await get('ada')).status, status);
        assert.deepEqual((await admin.keys('*')).sort(), ['mine:ada', 'store-3600000:ada', 'store-60000:ada']);
        assert.deepEqual(errors, [], 'express-rate-limit takes none of them for counted twice');
      });
    });

    test('the same store twice in one request is reported as counted twice', async () => {
      const errors = [];
      const logger = { error: (error) => errors.push(error.code), warn() {} };
      const limiter = () => rateLimit({ limit: 5, windowMs: HOUR, keyGenerator: byUser, logger, store: new RedisRlStore(limits) });
      await serving([limiter(), limiter()], async (get) => {
        await get('ada');
        assert.deepEqual(errors, ['ERR_ERL_DOUBLE_COUNT']);
      });
    });

    test('without a server: an error, or the request goes on', async () => {
      const broken = await down('/nonexistent/redis.sock');
      const logger = { error() {}, warn() {} };
      try {
        const dead = new Limits(broken.client, {});
        for (const [passOnStoreError, status] of [[false, 503], [true, 200]]) {
          const limiter = rateLimit({ limit: 1, keyGenerator: byUser, logger, passOnStoreError, store: new RedisRlStore(dead) });
          await serving([limiter], async (get) => assert.equal((await get('ada')).status, status));
        }
        await dead.close();
      } finally {
        await broken.close();
      }
    });

    test("without a server, and with onDown: 'open': each request goes on", async () => {
      const broken = await down('/nonexistent/redis.sock');
      const errors = [];
      const logger = { error: (error) => errors.push(error), warn: (error) => errors.push(error) };
      try {
        const open = new Limits(broken.client, { onDown: 'open' });
        const store = new RedisRlStore(open);
        const limiter = rateLimit({ windowMs: HOUR, limit: 1, keyGenerator: byUser, logger, standardHeaders: 'draft-8', store });
        await serving([limiter], async (get) => {
          for (let n = 0; n < 3; n++) assert.equal((await get('ada')).status, 200);
        });
        assert.equal(await limiter.getKey('ada'), undefined);
        await open.close();
        assert.deepEqual(errors, []);
      } finally {
        await broken.close();
      }
    });

    test('without a server, a limiter in the process decides', async () => {
      const broken = await down('/nonexistent/redis.sock');
      try {
        const local = new Limits(broken.client, { onDown: new Gcra('2/h') });
        const limiter = rateLimit({ windowMs: HOUR, limit: 100, keyGenerator: byUser, store: new RedisRlStore(local) });
        await serving([limiter], async (get) => {
          for (const status of [200, 200, 429]) assert.equal((await get('ada')).status, status);
        });
        await local.close();
      } finally {
        await broken.close();
      }
    });

    test('a store that express-rate-limit has not initialised says so', () =>
      assert.rejects(new RedisRlStore(limits).increment('key'), /has not initialised/));
  });
}
