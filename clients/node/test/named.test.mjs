// Tests limits by name: the policy is a key on the server, which changes under the process.
import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  Fixed, Gcra, InvalidArgument, InvalidKey, InvalidLimit, Lease, LeaseLimit, LeaseLost, Limits, Named, RateLimited, Slide,
} from '../dist/index.js';
import { EACH } from './clients.mjs';
import { eventually, info, inspect, onServer, startCluster, stats, stopClock, used } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
const TEN = new Fixed('10/h');
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

const rule = (key, text) => admin.call('RL.POLICY', key, ...text.split(' '));
const kind = async (key) => (await inspect(admin, key)).algorithm;

for (const [name, { single, cluster: connect }] of EACH) {
  /** Runs `use` with limits of this client. */
  const withLimits = async (use, options = {}) => {
    const { client, close } = await single(server.path);
    const limits = new Limits(client, { ...PATIENT, ...options });
    try {
      await use(limits);
    } finally {
      await limits.close();
      await close();
    }
  };

  describe(`a limit by name: ${name}`, () => {
    test('the default serves when no key exists, and again after DEL; the policy changes its algorithm', () =>
      withLimits(async (limits) => {
        const api = limits.limit('api', new Named('policy:api', TEN));
        const first = await api.take('user');
        assert.deepEqual([first.limit, first.remaining, await kind('api:user')], [10, 9, 'FIXED']);
        await rule('policy:api', 'SLIDE 20 1h');
        const second = await api.take('user', 2);
        assert.deepEqual([second.limit, second.remaining, await kind('api:user')], [20, 17, 'SLIDE']);
        assert.equal(second.headers()['RateLimit-Policy'], '"api";q=20');
        await rule('policy:api', 'GCRA 5 1h');
        assert.deepEqual([(await api.takeUpTo('user', 9)).granted, (await api.take('user')).allowed], [2, false]);
        await admin.del('policy:api', 'api:user');
        assert.equal((await api.take('user', 1, { id: 'one' })).limit, 10);
        assert.equal((await api.take('user', 1, { id: 'one' })).remaining, 9);
        assert.deepEqual([(await api.force('user', 3)).remaining, (await api.refund('user', 1)).remaining], [6, 7]);
        assert.equal((await api.reserve('user', '2h')).remaining, 6);
        await admin.set('policy:api', 'GCRA 5 BRUST');
        await assert.rejects(api.take('user'), (error) => error instanceof InvalidArgument && /policy key 'policy:api'/.test(error.message));
      }));

    test('overrides by a function of the key', () =>
      withLimits(async (limits) => {
        const keys = [];
        const overrides = (key) => (keys.push(key), [`policy:${key}`]);
        const api = limits.limit('api', new Named('policy:api', TEN, { overrides }));
        await rule('policy:acme', 'FIXED 50 1h');
        await rule('policy:api', 'FIXED 7 1h');
        const asked = ['acme', 42, Buffer.from('ü')];
        const limitsOf = [];
        for (const key of asked) limitsOf.push((await api.take(key)).limit);
        assert.deepEqual([limitsOf, keys], [[50, 7, 7], ['acme', '42', Buffer.from('ü')]]);
        for (const wrong of [Array(16).fill('policy'), [''], 'policy']) {
          await assert.rejects(limits.limit('api', new Named('policy:api', TEN, { overrides: () => wrong })).take('a'), InvalidLimit);
        }
      }, { prefix: 'ä:' }));

    test('a wallet', () =>
      withLimits(async (limits) => {
        const wallet = limits.wallet(limits.limit('api', new Named('policy:api', TEN)), { batch: 4, idle: 3600 });
        assert.deepEqual([(await wallet.take('a', 2)).limit, await used(admin, 'api:a')], [10, 4]);
        await rule('policy:api', 'FIXED 20 1h');
        // More than the default would grant at once.
        assert.equal((await wallet.take('a', 12)).granted, 12);
        assert.equal((await wallet.take('a', 5)).granted, 5);
        const denied = await wallet.take('a', 9);
        assert.deepEqual([denied.allowed, denied.wait > 3000, denied.limit], [false, true, 20]);
        assert.equal((await wallet.take('a', 21)).wait, null);
        await rule('policy:api', 'FIXED 3 1h');
        assert.equal((await wallet.take('b', 8)).wait, null);
        // Nobody notices a policy that is only tried.
        await rule('policy:api', 'FIXED 0 1h SHADOW');
        for (const cost of [1, 8, 30]) assert.equal((await wallet.take('c', cost)).granted, cost);
      }));

    test('waits in line, blocks and pauses', () =>
      withLimits(async (limits) => {
        const api = limits.limit('api', new Named('policy:api', TEN));
        for (const text of [undefined, 'SLIDE 10 1h']) {
          await admin.flushall();
          if (text) await rule('policy:api', text);
          await api.take('a', 10);
          const waits = api.wait('a', '2h');
          await eventually(async () => (await info(admin, 'rl_waiting_clients')) === 1);
          await admin.del('api:a');
          assert.equal((await waits).granted, 1);
          await api.charge('a', 3, { wait: 1 }, (charge) => (charge.used = 5));
          assert.equal(await used(admin, 'api:a'), 6);
          assert.deepEqual([(await api.take('a', 4, { id: 'x' })).granted, (await api.settle('a', 'x', 0)).remaining], [4, 4]);
          await api.take('a', 3, { id: 'y' });
          assert.equal((await api.release('a', 'y')).remaining, 4);
          assert.equal(await api.admit('a', { cost: 4 }, () => 'done'), 'done');
          await assert.rejects(api.admit('a', {}, () => 'done'), RateLimited);
          assert.ok((await api.pause('b', 60)) > 50);
          assert.equal((await api.take('b')).allowed, false);
          await api.resume('b');
          assert.ok((await api.observe('b', new Response(null, { status: 429, headers: { 'Retry-After': '9' } }))) > 8);
        }
      }));

    test('a lease', () =>
      withLimits(async (limits) => {
        const jobs = limits.limit('jobs', new Named('policy:jobs', new Lease(1, 30)));
        assert.ok(jobs instanceof LeaseLimit);
        for (const places of [1, 2]) {
          if (places === 2) await rule('policy:jobs', 'LEASE 2 30s');
          await jobs.hold('a', { id: 'one' }, async (held) => {
            assert.equal(held.decision.limit, places);
            assert.equal((await jobs.renew('a', 'one')).granted, 1);
            assert.equal(await jobs.hold('a', {}, () => 'second').catch(() => 'denied'), places === 2 ? 'second' : 'denied');
          });
          assert.equal(await used(admin, 'jobs:a'), 0);
        }
        // It is renewed by the ttl of the policy key.
        await rule('policy:jobs', 'LEASE 2 5s');
        await jobs.hold('a', { id: 'one' }, async (held) => {
          await sleep(6000);
          held.check();
          assert.equal((await jobs.renew('a', 'one')).granted, 1);
        });
        // A lease is renewed at each third of its ttl, and lost when somebody else ends it.
        const short = limits.limit('jobs', new Named('policy:none', new Lease(1, '900ms')));
        await assert.rejects(short.hold('b', { id: 'one' }, async ({ signal }) => {
          await admin.call('RL.RELEASE', 'jobs:b', 'one');
          await eventually(() => signal.aborted);
        }), LeaseLost);
        assert.equal((await jobs.hold('c', {}, ({ decision }) => decision)).headers()['RateLimit-Policy'], '"jobs";q=2;qu="concurrent-requests"');
      }));

    test('a denial is repeated, and SHADOW lets all calls through', (t) =>
      withLimits(async (limits) => {
        stopClock(t);
        const api = limits.limit('api', new Named('policy:api', TEN));
        await rule('policy:api', 'FIXED 1 1h');
        await api.take('a');
        const before = await stats(admin, 'rl.use');
        assert.deepEqual([(await api.take('a')).source, (await api.take('a')).source], ['server', 'repeated']);
        assert.equal(await stats(admin, 'rl.use'), before + 1);
        await rule('policy:api', 'FIXED 1 1h SHADOW');
        const shadowed = await info(admin, 'rl_fixed_shadowed');
        assert.equal((await api.take('b', 3)).granted, 3);
        assert.equal(await info(admin, 'rl_fixed_shadowed'), shadowed + 1);
      }, { repeatDenials: 1 }));

    test('in a cluster, all keys need the hash tag of the call', async () => {
      const cluster = await startCluster();
      const { client, close } = await connect(cluster.nodes);
      const limits = new Limits(client, PATIENT);
      try {
        const overrides = (key) => [`policy:${key}`];
        const api = limits.limit('api', new Named('policy:{a}', TEN, { overrides }));
        const node = await cluster.nodeOf('{a}');
        assert.equal((await api.take('user{a}')).limit, 10);
        await node.call('RL.POLICY', 'policy:user{a}', 'GCRA', '20', '1h');
        assert.equal((await api.take('user{a}')).limit, 20);
        await assert.rejects(api.take('b'), (error) => error instanceof InvalidKey && /policy keys of a Named/.test(error.message));
      } finally {
        await limits.close();
        await close();
        await cluster.stop();
      }
    });
  });
}

test('without the server, onDown decides', async () => {
  const { client, close } = await EACH[0][1].down('/none');
  const limits = new Limits(client, { onDown: 'open' });
  const { granted, limit, source } = await limits.limit('api', new Named('policy:api', TEN)).take('a');
  assert.deepEqual([granted, limit, source], [1, 10, 'down']);
  await limits.close();
  await close();
});

test('what a Named cannot do is said', async () => {
  const { client, close } = await EACH[0][1].single(server.path);
  const limits = new Limits(client, PATIENT);
  const api = limits.limit('api', new Named('policy:api', TEN));
  const other = limits.limit('other', TEN);
  const calls = [
    () => api.peek('a'), () => api.until('a', new Date()), () => limits.all([[other, 'a'], [api, 'a']]), () => limits.all([[api, 'a']]),
    () => limits.admit([[other, 'a'], [api, 'a']], { estimate: 1 }, () => {}),
    () => limits.limit('jobs', new Named('policy:jobs', new Lease(1, 30))).peek('a'),
  ];
  for (const call of calls) {
    await assert.rejects(call, (error) => error instanceof InvalidArgument && /a Named limit cannot do this/.test(error.message));
  }
  assert.deepEqual(await admin.keys('*'), []);
  for (const wrong of [['', TEN], [1, TEN], ['a', '10/h'], ['a', new Named('b', TEN)], ['a', TEN, { overrides: [] }], ['a', TEN, { override: [] }]]) {
    assert.throws(() => new Named(...wrong), InvalidLimit);
  }
  assert.equal(String(new Named('a', TEN)), String(new Named('a', new Fixed('10/h'))));
  for (const other of [new Named('b', TEN), new Named('a', new Gcra('10/h')), new Named('a', new Slide('10/h')), TEN]) {
    assert.notEqual(String(new Named('a', TEN)), String(other));
  }
  await limits.close();
  await close();
});
