// Tests decisions that are made in the process: those of wallets, and denials that are repeated. What counts is what the server says.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Bucket, Closed, Fixed, Gcra, InvalidCost, InvalidKey, InvalidLimit, Lease, Limits, RateLimited, Slide, Unavailable } from '../dist/index.js';
import { Repeats } from '../dist/repeats.js';
import { CLIENTS, EACH } from './clients.mjs';
import { eventually, info, inspect, onServer, startCluster, startProxy, stopClock, used } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

/** Runs `use` with limits of a client. */
async function withLimits({ single }, path, use, options = {}) {
  const { client, close } = await single(path);
  const limits = new Limits(client, { ...PATIENT, ...options });
  try {
    await use(limits);
  } finally {
    await limits.close();
    await close();
  }
}

const calls = () => info(admin, 'rl_fixed_calls');

for (const [name, client] of EACH) {
  describe(`a wallet: ${name}`, () => {
    test('it fetches a batch, and decides from it', () =>
      withLimits(client, server.path, async (limits) => {
        const limit = limits.limit('wallet', new Fixed('1000/h'));
        const wallet = limits.wallet(limit, { batch: 100, idle: 3600 });
        const before = await calls();
        const first = await wallet.take('key', 2);
        assert.deepEqual([first.granted, first.limit, first.remaining, first.allowed, first.source], [2, 1000, 998, true, 'wallet']);
        const decisions = await Promise.all(Array.from({ length: 98 }, () => wallet.take('key')));
        assert.ok(decisions.every(({ granted }) => granted === 1));
        assert.equal(decisions[97].remaining, 900);
        assert.equal(await calls(), before + 1);
        assert.equal(await used(admin, 'wallet:key'), 100);
        // One fetch, although many calls need it at the same time.
        assert.ok((await Promise.all(Array.from({ length: 100 }, () => wallet.take('key')))).every(({ granted }) => granted === 1));
        assert.equal(await calls(), before + 2);
        assert.equal((await wallet.take('key', 250)).granted, 250);
        assert.equal(await calls(), before + 3);
        assert.equal(await used(admin, 'wallet:key'), 450);
        await assert.rejects(wallet.take('key', 0), InvalidCost);
        await assert.rejects(wallet.take(''), InvalidKey);
      }));

    test('what is left is given back at close', async () => {
      await withLimits(client, server.path, async (limits) => {
        const wallet = limits.wallet(limits.limit('wallet', new Slide('1000/h')), { batch: 100, idle: 3600 });
        for (const key of ['a', 'b', 'a']) await wallet.take(key, 3);
        assert.deepEqual([await used(admin, 'wallet:a'), await used(admin, 'wallet:b')], [100, 100]);
      });
      assert.deepEqual([await used(admin, 'wallet:a'), await used(admin, 'wallet:b')], [6, 3]);
    });

    test('what is left is given back when no call comes for a while, and then fetched anew', () =>
      withLimits(client, server.path, async (limits) => {
        const wallet = limits.wallet(limits.limit('wallet', new Slide('1000/h')), { batch: 100, idle: 0.2 });
        assert.equal((await wallet.take('key', 3)).granted, 3);
        await eventually(async () => (await used(admin, 'wallet:key')) === 3);
        assert.equal((await wallet.take('key', 1)).granted, 1);
        await eventually(async () => (await used(admin, 'wallet:key')) === 4);
      }));

    test('when the server grants fewer, it serves these, and denies the rest with the time of a retry', () =>
      withLimits(client, server.path, async (limits) => {
        const wallet = limits.wallet(limits.limit('wallet', new Fixed('10/h')), { batch: 8, idle: 3600 });
        const decisions = await Promise.all(Array.from({ length: 12 }, () => wallet.take('key')));
        assert.equal(decisions.filter(({ granted }) => granted).length, 10);
        const denied = decisions.find(({ allowed }) => !allowed);
        assert.ok(denied.wait > 3000 && denied.wait <= 3600, denied.wait);
        assert.equal(denied.headers()['Retry-After'], String(Math.ceil(denied.wait)));
        const other = limits.limit('wallet', new Fixed('10/h'));
        assert.equal((await wallet.take('other', 4)).granted, 4);
        // 4 are left here, and 2 on the server.
        assert.equal((await other.take('other', 2)).granted, 2);
        const more = await wallet.take('other', 5);
        assert.deepEqual([more.granted, more.wait > 3000, more.remaining], [0, true, 4]);
        assert.equal((await wallet.take('other', 11)).wait, null);
        assert.equal((await wallet.take('other', 4)).granted, 4);
        assert.equal(await used(admin, 'wallet:other'), 10);
      }));

    for (const [kind, policy] of Object.entries({
      fixed: new Fixed('100/s'), slide: new Slide('100/s'), gcra: new Gcra('100/s'), bucket: new Bucket('100/s'),
    })) {
      test(`units are not spent after the window in which they were charged: ${kind}`, () =>
        withLimits(client, server.path, async (limits) => {
          const wallet = limits.wallet(limits.limit('wallet', policy), { batch: 100, idle: 3600 });
          const counted = () => info(admin, `rl_${kind}_calls`);
          assert.equal((await wallet.take('key')).granted, 1);
          const before = await counted();
          await sleep(1100);
          assert.equal((await wallet.take('key')).granted, 1);
          assert.ok((await counted()) > before);
        }));
    }

    test('a fetch whose reply is lost is charged once', async () => {
      const proxy = await startProxy(server);
      try {
        await withLimits(client, proxy.path, async (limits) => {
          const wallet = limits.wallet(limits.limit('wallet', new Fixed('1000/h')), { batch: 100, idle: 3600 });
          proxy.lose('reply', 'UPTO');
          assert.equal((await wallet.take('key')).granted, 1);
          assert.equal(await used(admin, 'wallet:key'), 100);
          proxy.lose('reply', 'RL.SETTLE');
        });
        assert.equal(proxy.lost.length, 2);
        assert.equal(await used(admin, 'wallet:key'), 1);
      } finally {
        await proxy.stop();
      }
    });

    test('a fetch whose reply never comes is given back', async () => {
      const proxy = await startProxy(server);
      try {
        await withLimits(client, proxy.path, async (limits) => {
          const wallet = limits.wallet(limits.limit('wallet', new Fixed('1000/h')), { batch: 100, idle: 3600 });
          proxy.lose('silence', 'UPTO');
          await assert.rejects(wallet.take('key'), Unavailable);
        }, { timeout: 1.5 });
        assert.equal(await used(admin, 'wallet:key'), 0);
      } finally {
        await proxy.stop();
      }
    });

    test('spent batches leave no ids on the key', () =>
      withLimits(client, server.path, async (limits) => {
        const wallet = limits.wallet(limits.limit('wallet', new Slide('100000/h')), { batch: 10, idle: 3600 });
        for (let n = 0; n < 1000; n++) assert.equal((await wallet.take('key')).granted, 1);
        await eventually(async () => (await inspect(admin, 'wallet:key')).ids === 0);
        assert.equal(await used(admin, 'wallet:key'), 1000);
        await wallet.take('key', 3);
        await wallet.close();
        const { ids, used: units } = await inspect(admin, 'wallet:key');
        assert.deepEqual([ids, units], [0, 1003]);
      }));

    test('a cost above the capacity is denied, and takes nothing from others', () =>
      withLimits(client, server.path, async (limits) => {
        const limit = limits.limit('wallet', new Gcra('100/h'));
        const wallet = limits.wallet(limit, { batch: 10 });
        const denied = await wallet.take('key', 101);
        assert.deepEqual([denied.granted, denied.wait, denied.limit, denied.remaining], [0, null, 100, 100]);
        assert.equal(await admin.exists('wallet:key'), 0);
        assert.equal((await limit.take('key', 100)).granted, 100);
      }));

    test('what does not suffice for a call is given back at once, and not when it is idle', () =>
      withLimits(client, server.path, async (limits) => {
        const limit = limits.limit('wallet', new Fixed('100/h'));
        const [one, other] = [100, 60].map((batch) => limits.wallet(limit, { batch, idle: 3600 }));
        const take = async (wallet, cost) => (await wallet.take('key', cost)).granted;
        assert.deepEqual([await take(one, 80), await take(one, 80), await used(admin, 'wallet:key')], [80, 0, 80]);
        assert.equal(await take(other, 20), 20);
        // The server has too few.
        await limit.refund('key', 50);
        const { allowed, remaining } = await one.take('key', 80);
        assert.deepEqual([allowed, remaining, await used(admin, 'wallet:key')], [false, 50, 50]);
        // A cost above the batch needs the units that are here, too.
        assert.deepEqual([await take(other, 10), await used(admin, 'wallet:key')], [10, 100]);
        await limit.refund('key', 50);
        assert.equal(await take(other, 90), 90);
        // A call for fewer that waits for the same units gets them, in any order.
        for (const costs of [[80, 20], [20, 80]]) {
          await limit.refund('key', 20);
          const granted = await Promise.all(costs.map((cost) => take(one, cost)));
          assert.deepEqual([granted.sort(), await used(admin, 'wallet:key')], [[0, 20], 100]);
        }
      }));

    test('a closed wallet, and one of closed limits', () =>
      withLimits(client, server.path, async (limits) => {
        const [one, other] = [1, 2].map(() => limits.wallet(limits.limit('wallet', new Fixed('1000/h'))));
        await one.take('key', 2);
        const late = other.take('key', 3);
        await one.close();
        await assert.rejects(one.take('key'), Closed);
        await limits.close();
        await late.catch((error) => assert.ok(error instanceof Closed));
        await assert.rejects(other.take('key'), Closed);
        const units = await used(admin, 'wallet:key');
        assert.ok(units === 2 || units === 5, String(units));
      }));
  });
}

for (const [name, { made }] of EACH) {
  if (!made) test(`several processes spend no more than the server has charged: ${name}`, async () => {
    const library = name.startsWith('ioredis') ? 'ioredis' : 'node-redis';
    const workers = Array.from({ length: 4 }, () => {
      const child = fork(fileURLToPath(new URL('spender.mjs', import.meta.url)), [library, server.path, '3000/h', '50']);
      const worker = { child, spent: 0, ready: false, closed: false };
      child.on('message', ({ spent = 0, ready = false, closed = false }) => {
        worker.spent += spent;
        worker.ready ||= ready;
        worker.closed ||= closed;
      });
      worker.exited = once(child, 'exit');
      return worker;
    });
    const spent = () => workers.reduce((sum, worker) => sum + worker.spent, 0);
    try {
      // One is killed in the middle: what it held stays charged.
      await eventually(() => workers.every(({ ready }) => ready));
      for (const { child } of workers) child.send('go');
      await eventually(() => workers.some(({ spent }) => spent > 100));
      const victim = workers.find(({ spent }) => spent > 100);
      victim.child.kill('SIGKILL');
      while (workers.some(({ child }) => child.exitCode === null && child.signalCode === null)) {
        // First what was spent, then what is charged: units are charged before they are spent.
        const sum = spent();
        const charged = await used(admin, 'shared:key');
        assert.ok(sum <= charged, `${sum} spent, ${charged} charged`);
        await sleep(5);
      }
      await Promise.all(workers.map(({ exited }) => exited));
      assert.deepEqual(workers.map(({ closed }) => closed), workers.map((worker) => worker !== victim));
      const charged = await used(admin, 'shared:key');
      assert.ok(spent() <= charged && charged <= 3000, `${spent()} spent, ${charged} charged`);
      // What the killed one held, and had spent without having reported it: at most a batch, and a call.
      assert.ok(charged - spent() <= 55, `${spent()} spent, ${charged} charged`);
      assert.ok(spent() > 2900, `${spent()} spent`);
    } finally {
      for (const { child } of workers) child.kill('SIGKILL');
    }
  });
}

test('in a cluster', async (t) => {
  const cluster = await startCluster();
  try {
    for (const [prefix, { cluster: connect }] of Object.entries(CLIENTS)) {
      await t.test(prefix, async () => {
        const { client: redis, close } = await connect(cluster.nodes);
        try {
          const before = await cluster.moved();
          const limits = new Limits(redis, { prefix, ...PATIENT });
          const limit = limits.limit('wallet', new Fixed('1000/h'));
          const wallet = limits.wallet(limit);
          const keys = Array.from({ length: 12 }, (_, n) => `user:${n}`);
          for (const key of keys) assert.equal((await wallet.take(key, 7)).granted, 7);
          await wallet.close();
          for (const key of keys) assert.equal((await limit.peek(key)).remaining, 993);
          await limits.close();
          assert.equal(await cluster.moved(), before);
        } finally {
          await close();
        }
      });
    }
  } finally {
    await cluster.stop();
  }
});

describe('denials that are repeated in the process', () => {
  const repeating = (use) => withLimits(CLIENTS['ioredis 5'], server.path, use, { repeatDenials: 1 });

  test('the same cost, on this key, for no longer than said', (t) =>
    repeating(async (limits) => {
      const stopped = stopClock(t);
      const limit = limits.limit('few', new Fixed('10/h'));
      await limit.take('key', 9);
      assert.equal((await limit.take('key', 2)).source, 'server');
      const before = await calls();
      const again = await limit.take('key', 2);
      assert.deepEqual([again.source, again.granted, again.limit, again.remaining, again.allowed], ['repeated', 0, 10, 1, false]);
      assert.ok(again.wait > 3500 && again.headers()['Retry-After'] === String(Math.ceil(again.wait)));
      assert.equal((await limit.take(Buffer.from('key'), 2)).source, 'repeated');
      await assert.rejects(limit.admit('key', { cost: 2 }, assert.fail), (error) => error instanceof RateLimited && error.decision.source === 'repeated');
      assert.equal(await calls(), before);
      // Others ask: another cost, whose wait may differ, another key, another limit object, a wait, and an id.
      assert.equal((await limit.take('key', 3)).source, 'server');
      assert.equal((await limit.take('key', 11)).wait, null);
      assert.equal((await limit.take('key', 1)).granted, 1);
      assert.equal((await limit.take('other', 2)).granted, 2);
      assert.equal((await limits.limit('few', new Fixed('10/h')).take('key', 2)).source, 'server');
      assert.equal((await limit.wait('key', 0, 2)).source, 'server');
      assert.equal((await limit.take('key', 2, { id: 'mine' })).source, 'server');
      assert.equal(await calls(), before + 7);
      await admin.del(limit.keyOf('key'));
      stopped.mock.restore();
      await eventually(async () => (await limit.take('key', 2)).allowed);
    }));

  test('what gives back or forces on this limit forgets them', (t) =>
    repeating(async (limits) => {
      stopClock(t);
      const limit = limits.limit('back', new Fixed('10/h'));
      await limit.take('key', 10, { id: 'mine' });
      const gives = [() => limit.force('key', 1), () => limit.refund('key', 1), () => limit.settle('key', 'mine', 9), () => limit.release('key', 'mine')];
      for (const give of gives) {
        assert.equal((await limit.take('key', 10)).source, 'server');
        assert.equal((await limit.take('key', 10)).source, 'repeated');
        await give();
      }
      assert.equal((await limit.take('key', 10)).source, 'server');
      await limit.take('charged', 4);
      await limit.charge('charged', 6, {}, async () => {
        for (const source of ['server', 'repeated']) assert.equal((await limit.take('charged', 1)).source, source);
      });
      assert.equal((await limit.take('charged', 1)).source, 'server');
    }));

  test('10 000 keys at most, and none that is never granted', (t) =>
    repeating(async (limits) => {
      stopClock(t);
      const repeats = new Repeats(1000);
      const denied = await limits.limit('none', new Fixed('0/h')).take('key');
      repeats.add('never', 1, denied, 0);
      assert.equal(repeats.find('never', 1), undefined);
      const limit = limits.limit('one', new Fixed('1/h'));
      await limit.take('key');
      const denial = await limit.take('key');
      for (let n = 0; n <= 10_000; n++) repeats.add(`key ${n}`, 1, denial, 0);
      assert.equal(repeats.find('key 0', 1), undefined);
      assert.equal(repeats.find('key 10000', 1).source, 'repeated');
    }));

  test('a lease has no wallet', () =>
    withLimits(CLIENTS['ioredis 5'], server.path, async (limits) => {
      assert.throws(() => limits.wallet(limits.limit('jobs', new Lease(1, 30))), InvalidLimit);
    }));

  test('without the option, each call asks', () =>
    withLimits(CLIENTS['ioredis 5'], server.path, async (limits) => {
      const limit = limits.limit('few', new Fixed('1/h'));
      for (const allowed of [true, false, false]) {
        const decision = await limit.take('key');
        assert.deepEqual([decision.allowed, decision.source], [allowed, 'server']);
      }
    }));
});
