// Tests the middleware for Express and the hook for Fastify, through HTTP: the same cases for both.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, afterEach, before, describe, test } from 'node:test';
import express from 'express';
import fastify from 'fastify';
import { Closed, Fixed, Gcra, Lease, Limits, Named } from '../dist/index.js';
import { rateLimit } from '../dist/express.js';
import { rateLimit as hook } from '../dist/fastify.js';
import { CLIENTS } from './clients.mjs';
import { onServer, used, warnings } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
const PLAIN = { headers: { Connection: 'close' } };
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

/** Serves an app with these limits, each a list of arguments, and runs `use`, which gets a function that makes a request. */
const FRAMEWORKS = {
  async Express(limits, use) {
    const app = express();
    app.set('env', 'test');
    for (const one of limits) app.use(rateLimit(...one));
    app.get('/', (request, response) => response.send('hello'));
    app.get('/crash', () => {
      throw new Error('a crash');
    });
    const http = app.listen(0, '127.0.0.1');
    await once(http, 'listening');
    try {
      await use((path = '/', headers = {}) => fetch(`http://127.0.0.1:${http.address().port}${path}`, { headers: { ...PLAIN.headers, ...headers } }));
    } finally {
      http.closeAllConnections();
      http.close();
    }
  },
  async Fastify(limits, use) {
    const app = fastify();
    for (const one of limits) app.addHook('onRequest', hook(...one));
    app.get('/', async () => 'hello');
    app.get('/crash', async () => {
      throw new Error('a crash');
    });
    try {
      // By a connection: `inject` of Fastify 5 does not run on Node.js 18.
      const address = await app.listen({ port: 0, host: '127.0.0.1' });
      await use((path = '/', headers = {}) => fetch(address + path, { headers: { ...PLAIN.headers, ...headers } }));
    } finally {
      await app.close();
    }
  },
};

for (const [name, serve] of Object.entries(FRAMEWORKS)) {
  describe(name, () => {
    let client, close, limits, api;
    before(async () => {
      ({ client, close } = await CLIENTS['ioredis 5'].single(server.path));
      limits = new Limits(client, PATIENT);
      api = limits.limit('api', new Gcra('3/h'));
    });
    after(async () => {
      await limits?.close();
      await close?.();
    });
    const statuses = (limit, times) => {
      const seen = [];
      return serve([limit], async (get) => {
        for (let n = 0; n < times; n++) seen.push((await get()).status);
      }).then(() => seen);
    };

    test('the key is the address; a denial is a problem, with the header fields', () =>
      serve([[api]], async (get) => {
        for (const remaining of [2, 1, 0]) {
          const response = await get();
          assert.deepEqual([response.status, response.headers.get('X-RateLimit-Remaining')], [200, String(remaining)]);
        }
        assert.equal(await used(admin, 'api:address:127.0.0.1'), 3);
        const denied = await get('/crash');
        assert.equal(denied.status, 429);
        assert.match(denied.headers.get('Content-Type'), /^application\/problem\+json/);
        assert.match(denied.headers.get('Retry-After'), /^1[12]\d\d$/);
        assert.deepEqual((await denied.json())['violated-policies'], ['api']);
      }));

    test('an answer of the program to a denial', async () => {
      const answers = {
        Express: (request, response, decision) => response.status(503).json({ busy: decision.name }),
        Fastify: (request, reply, decision) => reply.code(503) && { busy: decision.name },
      };
      await serve([[limits.limit('none', new Fixed('0/h')), { denied: answers[name] }]], async (get) => {
        const response = await get();
        assert.deepEqual([response.status, await response.json()], [503, { busy: 'none' }]);
        assert.equal(response.headers.get('RateLimit'), '"none";r=0');
      });
      const broken = () => {
        throw Object.assign(new Error('broken'), { status: 418, statusCode: 418 });
      };
      assert.deepEqual(await statuses([limits.limit('none', new Fixed('0/h')), { denied: async () => broken() }], 1), [418]);
    });

    test('several limits: all in the fields of the draft, and the one with the least remaining in the others; also on errors', () =>
      serve([[api], [limits.limit('day', new Fixed('2/d'))], [limits.limit('month', new Fixed('9/30d'))]], async (get) => {
        const first = await get();
        assert.equal(first.headers.get('RateLimit-Policy'), '"api";q=3;w=3600, "day";q=2;w=86400, "month";q=9;w=2592000');
        assert.equal(first.headers.get('X-RateLimit-Limit'), '2');
        const crash = await get('/crash');
        assert.deepEqual([crash.status, crash.headers.get('X-RateLimit-Remaining')], [500, '0']);
        const third = await get();
        assert.deepEqual([third.status, (await third.json())['violated-policies']], [429, ['day']]);
        assert.equal(third.headers.get('X-RateLimit-Limit'), '2');
        assert.match(third.headers.get('Retry-After'), /^86\d{3}$/);
      }));

    test('a limit for each plan, a cost, a key, and requests that are skipped or have no key', async () => {
      const plans = { free: limits.limit('free', new Fixed('10/h')), pro: limits.limit('pro', new Fixed('100/h')) };
      const of = (request) => plans[request.headers['x-plan']];
      const options = {
        key: async (request) => (request.headers['x-user'] ? `user:${request.headers['x-user']}` : null),
        cost: async () => 4,
        skip: (request) => request.url === '/crash',
      };
      await serve([[of, options]], async (get) => {
        const ask = async (plan, user = 'ada') => (await get('/', { 'X-Plan': plan, ...(user && { 'X-User': user }) })).status;
        assert.deepEqual([await ask('free'), await ask('free'), await ask('free'), await ask('pro')], [200, 200, 429, 200]);
        assert.deepEqual([await used(admin, 'free:user:ada'), await used(admin, 'pro:user:ada')], [8, 4]);
        for (let n = 0; n < 3; n++) assert.equal(await ask('free', ''), 200);
        const skipped = await get('/crash', { 'X-Plan': 'free', 'X-User': 'ada' });
        assert.deepEqual([skipped.status, skipped.headers.get('RateLimit')], [500, null]);
        assert.equal(await admin.dbsize(), 2);
      });
    });

    test('a limit that an operator changes', async () => {
      const named = new Named('policy:api', new Fixed('2/h'), { overrides: (key) => [`policy:${key}`] });
      const key = (request) => `user:${request.headers['x-user']}`;
      await serve([[limits.limit('named', named), { key }]], async (get) => {
        const ask = async (user = 'ada') => {
          const response = await get('/', { 'X-User': user });
          return [response.status, response.headers.get('X-RateLimit-Limit')];
        };
        assert.deepEqual([await ask(), await ask(), await ask()], [[200, '2'], [200, '2'], [429, '2']]);
        for (const [rule, expected] of [['5 1h', [200, '5']], ['1 1h', [429, '1']], ['1 1h SHADOW', [200, '1']], ['0 1h', [429, '0']]]) {
          await admin.call('RL.POLICY', 'policy:api', 'GCRA', ...rule.split(' '));
          assert.deepEqual(await ask(), expected, rule);
        }
        await admin.call('RL.POLICY', 'policy:user:bob', 'SLIDE', '9', '1h');
        assert.deepEqual([await ask(), await ask('bob')], [[429, '0'], [200, '9']]);
      });
    });

    test('a wallet in the place of the limit', async () => {
      const wallet = limits.wallet(limits.limit('wallet', new Fixed('3/h')), { batch: 2 });
      assert.deepEqual(await statuses([wallet], 4), [200, 200, 200, 429]);
      await wallet.close();
      await assert.rejects(wallet.take('a'), Closed);
      assert.deepEqual(await statuses([wallet], 1), [500]);
    });

    test('many requests at once get no more than the limit', () =>
      serve([[limits.limit('many', new Fixed('20/h'))]], async (get) => {
        const all = await Promise.all(Array.from({ length: 60 }, () => get()));
        assert.deepEqual([200, 429].map((wanted) => all.filter(({ status }) => status === wanted).length), [20, 40]);
      }));

    test('without a server: 503, or the request goes on, or the limiter in the process decides', async () => {
      const broken = await CLIENTS['ioredis 5'].down('/nonexistent/redis.sock');
      try {
        for (const [onDown, wanted] of [['closed', [503, 503, 503]], ['open', [200, 200, 200]], [new Gcra('2/h'), [200, 200, 429]]]) {
          const dead = new Limits(broken.client, { onDown });
          await serve([[dead.limit('api', new Gcra('1/h'))]], async (get) => {
            for (const status of wanted) {
              const response = await get();
              assert.deepEqual([response.status, response.headers.get('RateLimit')], [status, null]);
            }
          });
          await dead.close();
        }
      } finally {
        await broken.close();
      }
    });

    test('a mistake of the program or of the key stops requests only with onDown closed', async () => {
      await admin.rpush('api:list', 'x');
      const open = new Limits(client, { ...PATIENT, onDown: 'open' });
      const fail = () => {
        throw Object.assign(new Error('no user'), { status: 401, statusCode: 401 });
      };
      const cases = [
        [{ key: fail }, 401], [{ key: async () => fail() }, 401], [{ key: () => '' }, 500], [{ cost: () => 0 }, 500], [{ cost: async () => NaN }, 500],
        [{ key: () => 'list' }, 500], [{ skip: fail }, 401],
      ];
      for (const [options, status] of cases) assert.deepEqual(await statuses([api, options], 1), [status]);
      const said = warnings();
      const lenient = open.limit('api', new Gcra('3/h'));
      for (const [options] of cases) assert.deepEqual(await statuses([lenient, options], 1), [200]);
      let calls = 0;
      assert.deepEqual(await statuses([() => (calls++ ? undefined : lenient)], 2), [200, 200]);
      assert.match((await said.stop())[0], /a request goes on without its limit: no user/);
      await open.close();
    });

    test('what is no limit is refused at once', () => {
      const make = { Express: rateLimit, Fastify: hook }[name];
      for (const wrong of [undefined, {}, limits.limit('jobs', new Lease(1, 30))]) assert.throws(() => make(wrong), TypeError);
      for (const wrong of [{ key: 'someone' }, { cost: 1 }, { skip: true }, { denied: {} }]) assert.throws(() => make(api, wrong), TypeError);
    });
  });
}
