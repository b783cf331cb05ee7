// Tests the middleware for Express, the hook for Fastify and the store for express-rate-limit, through HTTP.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import express from 'express';
import { rateLimit as expressRateLimit } from 'express-rate-limit';
import fastify from 'fastify';
import { Redis } from 'ioredis';
import { Fixed, Gcra, Limits } from '../src/index.js';
import { rateLimit } from '../src/express.js';
import { RedisRlStore } from '../src/express-rate-limit.js';
import { rateLimit as hook } from '../src/fastify.js';
import { MAIN } from './clients.mjs';
import { startServer, used } from './server.mjs';

let server, admin;
before(async () => {
  server = await startServer();
  admin = new Redis({ path: server.path });
});
after(async () => {
  admin?.disconnect();
  await server?.stop();
});
afterEach(() => admin.flushall());

/** Serves an Express app with this middleware, and returns the responses to `times` requests. */
async function serve(middleware, times) {
  const app = express();
  app.set('env', 'test');
  for (const one of [middleware].flat()) app.use(one);
  app.get('/', (request, response) => response.send('hello'));
  const http = app.listen(0, '127.0.0.1');
  await once(http, 'listening');
  try {
    const responses = [];
    for (let n = 0; n < times; n++) responses.push(await fetch(`http://127.0.0.1:${http.address().port}/`));
    return responses;
  } finally {
    http.closeAllConnections();
    http.close();
  }
}

const statuses = (responses) => responses.map(({ status }) => status);
const key = () => 'someone';

for (const [name, { single, down }] of MAIN) {
  describe(name, () => {
    let client, close, limits;
    before(async () => {
      ({ client, close } = await single(server.path));
      limits = new Limits(client, { patience: 20 });
    });
    after(() => close?.());

    test('Express: header fields, 429, and several limits', async () => {
      const api = limits.limit('api', new Gcra('3/h'));
      const day = limits.limit('day', new Fixed('2/d'));
      const responses = await serve([rateLimit(api, { key }), rateLimit(day, { key })], 3);
      assert.deepEqual(statuses(responses), [200, 200, 429]);
      assert.equal(responses[0].headers.get('RateLimit-Policy'), '"api";q=3;w=3600, "day";q=2;w=86400');
      assert.match(responses[0].headers.get('RateLimit'), /^"api";r=2;t=1200, "day";r=1;t=86400$/);
      assert.equal(responses[0].headers.get('Retry-After'), null);
      assert.equal(responses[2].headers.get('X-RateLimit-Limit'), '2');
      assert.match(responses[2].headers.get('Retry-After'), /^86\d{3}$/);
      assert.equal(await used(admin, 'api:someone'), 3);
    });

    test('Express: a wrong key or cost is an error 500, a server that is down 503, or let through', async () => {
      const api = limits.limit('api', new Gcra('3/h'));
      assert.deepEqual(statuses(await serve(rateLimit(api, { key: () => '' }), 1)), [500]);
      assert.deepEqual(statuses(await serve(rateLimit(api, { key, cost: () => 0 }), 1)), [500]);
      assert.deepEqual(statuses(await serve(rateLimit(api, { key, cost: async () => 2 }), 2)), [200, 429]);
      assert.throws(() => rateLimit(api, { key: 'someone' }), TypeError);
      const broken = await down('/nonexistent/redis.sock');
      try {
        for (const [onDown, status] of [['closed', 503], ['open', 200]]) {
          const limit = new Limits(broken.client, { onDown, patience: 0.2, log() {} }).limit('api', new Gcra('3/h'));
          const [response] = await serve(rateLimit(limit, { key }), 1);
          assert.equal(response.status, status);
          assert.equal(response.headers.get('RateLimit'), null);
        }
      } finally {
        await broken.close();
      }
    });

    test('Express: a wallet and a cached limit in the place of the limit', async () => {
      const api = limits.limit('api', new Fixed('3/h'));
      const wallet = limits.wallet(api, { batch: 2 });
      assert.deepEqual(statuses(await serve(rateLimit(wallet, { key }), 4)), [200, 200, 200, 429]);
      assert.deepEqual(statuses(await serve(rateLimit(limits.cached(api), { key: () => 'other' }), 4)), [200, 200, 200, 429]);
      await limits.close();
    });

    test('Fastify: header fields, 429, errors', async () => {
      const app = fastify();
      app.addHook('onRequest', hook(limits.limit('api', new Gcra('2/h')), { key: (request) => request.headers['x-user'] ?? '' }));
      app.get('/', async () => 'hello');
      try {
        const ask = () => app.inject({ url: '/', headers: { 'X-User': 'someone' } });
        const responses = [await ask(), await ask(), await ask()];
        assert.deepEqual(responses.map(({ statusCode }) => statusCode), [200, 200, 429]);
        assert.equal(responses[0].headers.ratelimit, '"api";r=1;t=1800');
        assert.match(responses[2].headers['retry-after'], /^1[78]\d\d$/);
        assert.equal((await app.inject('/')).statusCode, 500);
      } finally {
        await app.close();
      }
    });

    test('express-rate-limit: counts, decrements and resets', async () => {
      const store = new RedisRlStore(limits);
      const middleware = expressRateLimit({ windowMs: 3_600_000, limit: 2, keyGenerator: key, store });
      assert.deepEqual(statuses(await serve(middleware, 3)), [200, 200, 429]);
      assert.equal(await used(admin, 'store:3600000:someone'), 3);
      assert.equal((await store.get('someone')).totalHits, 3);
      await store.decrement('someone');
      assert.equal((await store.get('someone')).totalHits, 2);
      const { resetTime } = await store.get('someone');
      assert.ok(resetTime > Date.now() + 3_000_000 && resetTime < Date.now() + 3_700_000);
      await store.resetKey('someone');
      assert.equal((await store.get('someone')).totalHits, 0);
    });
  });
}
