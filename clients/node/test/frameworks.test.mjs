// Tests the middleware for Express and the hook for Fastify, through HTTP.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import express from 'express';
import fastify from 'fastify';
import { Fixed, Gcra, Limits } from '../src/index.js';
import { rateLimit } from '../src/express.js';
import { rateLimit as hook } from '../src/fastify.js';
import { MAIN } from './clients.mjs';
import { onServer, used } from './server.mjs';

let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

/** Serves an Express app with this middleware, and returns the responses to `times` requests, one after the other or at once. */
async function serve(middleware, times, atOnce = false) {
  const app = express();
  app.set('env', 'test');
  for (const one of [middleware].flat()) app.use(one);
  app.get('/', (request, response) => response.send('hello'));
  const http = app.listen(0, '127.0.0.1');
  await once(http, 'listening');
  try {
    const ask = () => fetch(`http://127.0.0.1:${http.address().port}/`);
    if (atOnce) return await Promise.all(Array.from({ length: times }, ask));
    const responses = [];
    for (let n = 0; n < times; n++) responses.push(await ask());
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

    test('Express: a request without a key is not limited', async () => {
      const api = limits.limit('api', new Fixed('1/h'));
      for (const none of [undefined, null]) {
        const responses = await serve(rateLimit(api, { key: () => none }), 3);
        assert.deepEqual(statuses(responses), [200, 200, 200]);
        assert.equal(responses[0].headers.get('RateLimit'), null);
      }
      assert.equal(await admin.dbsize(), 0);
    });

    test('Fastify: a request without a key is not limited', async () => {
      const app = fastify();
      app.addHook('onRequest', hook(limits.limit('api', new Fixed('1/h')), { key: (request) => request.headers['x-user'] }));
      app.get('/', async () => 'hello');
      try {
        const address = await app.listen({ port: 0, host: '127.0.0.1' });
        for (let n = 0; n < 3; n++) assert.equal((await fetch(address, { headers: { Connection: 'close' } })).status, 200);
        assert.equal(await admin.dbsize(), 0);
      } finally {
        await app.close();
      }
    });

    test('Express: an error that key or cost throws goes to the error handler, also when calls go on uncounted', async () => {
      const log = [];
      const open = new Limits(client, { onDown: 'open', patience: 20, log: (message) => log.push(message) });
      const api = open.limit('api', new Gcra('3/h'));
      const fail = () => {
        throw Object.assign(new Error('no user'), { status: 401 });
      };
      for (const [options, status] of [
        [{ key: fail }, 401], [{ key: async () => fail() }, 401], [{ key, cost: fail }, 401], [{ key, cost: () => NaN }, 500],
      ]) {
        assert.deepEqual(statuses(await serve(rateLimit(api, options), 1)), [status]);
      }
      assert.deepEqual(log, []);
    });

    test('Express: a retry after Retry-After is granted, and a cost above the capacity has none', async () => {
      const denied = rateLimit(limits.limit('soon', new Gcra('1/900ms')), { key });
      const [, second] = await serve(denied, 2);
      assert.deepEqual([second.status, second.headers.get('Retry-After')], [429, '1']);
      await sleep(1000);
      assert.deepEqual(statuses(await serve(denied, 1)), [200]);
      const [never] = await serve(rateLimit(limits.limit('api', new Gcra('3/h')), { key, cost: () => 4 }), 1);
      assert.deepEqual([never.status, never.headers.get('Retry-After'), never.headers.get('RateLimit')], [429, null, '"api";r=3']);
    });

    test('Express: many requests at once get no more than the limit', async () => {
      const responses = await serve(rateLimit(limits.limit('api', new Fixed('20/h')), { key }), 60, true);
      assert.equal(statuses(responses).filter((status) => status === 200).length, 20);
      assert.equal(statuses(responses).filter((status) => status === 429).length, 40);
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
        // By a connection: `inject` of Fastify 5 does not run on Node.js 18.
        const address = await app.listen({ port: 0, host: '127.0.0.1' });
        const ask = () => fetch(address, { headers: { 'X-User': 'someone', Connection: 'close' } });
        const responses = [await ask(), await ask(), await ask()];
        assert.deepEqual(statuses(responses), [200, 200, 429]);
        assert.equal(responses[0].headers.get('RateLimit'), '"api";r=1;t=1800');
        assert.match(responses[2].headers.get('Retry-After'), /^1[78]\d\d$/);
        assert.equal((await fetch(address, { headers: { Connection: 'close' } })).status, 500);
      } finally {
        await app.close();
      }
    });
  });
}
