// Tests decisions that are made in the process: the wallet and the denial cache. What counts is what the server says.
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { Bucket, Down, Fixed, Gcra, InvalidCost, InvalidKey, Lease, Limits, RateLimited, Slide } from '../src/index.js';
import { CLIENTS, EACH, MAIN } from './clients.mjs';
import { eventually, info, onServer, startCluster, startProxy, startServer, used } from './server.mjs';

const PATIENCE = 20;
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

/** Runs `use` with limits of a client. */
async function withLimits({ single }, path, use, options = {}) {
  const { client, close } = await single(path);
  const limits = new Limits(client, { patience: PATIENCE, ...options });
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
        assert.deepEqual([first.granted, first.limit, first.remaining, first.allowed, first.counted], [2, 1000, 998, true, true]);
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
          const before = await counted();
          assert.equal((await wallet.take('key')).granted, 1);
          await sleep(1100);
          assert.equal((await wallet.take('key')).granted, 1);
          assert.equal(await counted(), before + 2);
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
        const log = [];
        await withLimits(client, proxy.path, async (limits) => {
          const wallet = limits.wallet(limits.limit('wallet', new Fixed('1000/h')), { batch: 100, idle: 3600 });
          proxy.lose('silence', 'UPTO');
          await assert.rejects(wallet.take('key'), Down);
        }, { patience: 0.3, log: (message) => log.push(message) });
        // The release has reached the server, although its reply has not come, either.
        assert.equal(await used(admin, 'wallet:key'), 0);
        assert.match(log.join(), /was not given back/);
      } finally {
        await proxy.stop();
      }
    });
  });

}

for (const [name] of MAIN) {
  test(`several processes spend no more than the server has charged: ${name}`, async () => {
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

for (const [name, client] of Object.entries(CLIENTS).filter(([, { tracks }]) => tracks !== false)) {
  describe(`a denial cache: ${name}`, () => {
    /** Denies a key for an hour, and waits until that is remembered. */
    async function denied(limits, key, policy = new Fixed('10/h')) {
      const limit = limits.limit('cached', policy);
      const cached = limits.cached(limit);
      const size = cached.size;
      await limit.take(key, 10);
      assert.equal((await cached.take(key, 2)).allowed, false);
      await eventually(() => cached.size === size + 1);
      return { limit, cached };
    }

    test('after a denial, the server is not asked; a lower cost is asked', () =>
      withLimits(client, server.path, async (limits) => {
        const { cached } = await denied(limits, 'key');
        const before = await calls();
        const decision = await cached.take('key', 2);
        assert.deepEqual([decision.granted, decision.limit, decision.remaining, decision.allowed], [0, 10, 0, false]);
        assert.ok(decision.wait > 3000 && decision.wait <= 3600 && decision.reset >= decision.wait);
        assert.equal((await cached.take('key', 3)).allowed, false);
        await assert.rejects(cached.protect('key', { cost: 2 }), RateLimited);
        assert.equal(await calls(), before);
        assert.equal((await cached.take('key', 1)).allowed, false);
        assert.equal((await cached.take('other', 2)).allowed, true);
        assert.equal(await calls(), before + 2);
        await assert.rejects(cached.take('key', 0), InvalidCost);
      }));

    test('a change of the key drops the denial: a refund, a deleted key, FLUSHALL', () =>
      withLimits(client, server.path, async (limits) => {
        const { limit, cached } = await denied(limits, 'a');
        await denied(limits, 'b');
        await denied(limits, Buffer.from([0xff, 0x00]));
        await denied(limits, 'c');
        assert.equal(cached.size, 4);
        await limit.refund('a', 5);
        await eventually(() => cached.size === 3);
        assert.equal((await cached.take('a', 2)).granted, 2);
        await admin.del(limit.keyOf('b'));
        await eventually(() => cached.size === 2);
        assert.equal((await cached.take('b', 2)).granted, 2);
        await admin.del(limit.keyOf(Buffer.from([0xff, 0x00])));
        await eventually(() => cached.size === 1);
        await admin.flushall();
        await eventually(() => cached.size === 0);
        assert.equal((await cached.take('c', 2)).granted, 2);
      }));

    test('when the wait is over, the server is asked', () =>
      withLimits(client, server.path, async (limits) => {
        const { cached } = await denied(limits, 'key', new Fixed('10/1s'));
        await eventually(async () => (await cached.take('key', 2)).allowed);
      }));

    test('a lost tracking connection drops all; another is opened', async () => {
      const own = await startServer();
      const direct = new Redis({ path: own.path });
      try {
        await withLimits(client, own.path, async (limits) => {
          const { limit, cached } = await denied(limits, 'key');
          const tracking = async () => [...(await direct.client('LIST')).matchAll(/^id=(\d+) .* flags=(\w+) .*redir=(-?\d+)/gm)];
          const [[, id]] = (await tracking()).filter(([, , flags]) => flags.includes('t'));
          await direct.client('KILL', 'ID', id);
          await eventually(() => cached.size === 0);
          await eventually(async () => {
            await cached.take('key', 2);
            return cached.size === 1;
          });
          const [listener] = (await tracking()).filter(([, , flags]) => flags.includes('P'));
          await direct.client('KILL', 'ID', listener[1]);
          await eventually(() => cached.size === 0);
          await direct.del(limit.keyOf('key'));
          assert.equal((await cached.take('key', 2)).allowed, true);
        });
        // All its connections are closed.
        await eventually(async () => (await info(direct, 'connected_clients')) === 1);
      } finally {
        direct.disconnect();
        await own.stop();
      }
    });
  });
}

describe('the denial cache', () => {
  test('it remembers 10 000 keys at most', () =>
    withLimits(CLIENTS['ioredis 5'], server.path, async (limits) => {
      const cached = limits.cached(limits.limit('cached', new Fixed('1/h')));
      const keys = Array.from({ length: 10_100 }, (_, n) => `key:${n}`);
      for (let at = 0; at < keys.length; at += 500) {
        const some = keys.slice(at, at + 500);
        await Promise.all(some.map((key) => cached.take(key)));
        await Promise.all(some.map((key) => cached.take(key)));
        await eventually(() => cached.size === Math.min(10_000, at + some.length));
      }
      const asked = async (some) => {
        const before = await calls();
        await Promise.all(some.map((key) => cached.take(key)));
        return (await calls()) - before;
      };
      await eventually(async () => (await asked(keys.slice(-100))) === 0);
      assert.equal(cached.size, 10_000);
      // The oldest ones are forgotten.
      assert.equal(await asked(keys.slice(0, 100)), 100);
    }));

  test('a limit that is no rate has none', () =>
    withLimits(CLIENTS['ioredis 5'], server.path, async (limits) => {
      const lease = limits.limit('jobs', new Lease(1, 30));
      assert.throws(() => limits.cached(lease), TypeError);
      assert.throws(() => limits.wallet(lease), TypeError);
    }));

  test('a client that does not report changes of keys is refused', () =>
    withLimits(CLIENTS['valkey-glide 2'], server.path, async (limits) => {
      const limit = limits.limit('cached', new Fixed('10/h'));
      assert.throws(() => limits.cached(limit), { name: 'TypeError', message: /a cached limit needs/ });
    }));

  test('it works in a cluster, and so does the wallet', async (t) => {
    const cluster = await startCluster();
    try {
      for (const [name, client] of Object.entries(CLIENTS)) await t.test(name, () => inCluster(cluster, name, client));
    } finally {
      await cluster.stop();
    }
  });

  async function inCluster(cluster, prefix, { cluster: connect, tracks }) {
    const { client: redis, close } = await connect(cluster.nodes);
    try {
      const before = await cluster.moved();
      const limits = new Limits(redis, { prefix, patience: PATIENCE });
      const limit = limits.limit('cached', new Fixed('10/h'));
      const keys = Array.from({ length: 12 }, (_, n) => `user:${n}`);
      if (tracks !== false) {
        const cached = limits.cached(limit);
        for (const key of keys) {
          await limit.take(key, 10);
          assert.equal((await cached.take(key)).allowed, false);
        }
        await eventually(() => cached.size === keys.length);
        await Promise.all(keys.map((key) => limit.refund(key, 1)));
        await eventually(() => cached.size === 0);
        for (const key of keys) assert.equal((await cached.take(key)).allowed, true);
      }
      const wallet = limits.wallet(limits.limit('wallet', new Fixed('1000/h')));
      for (const key of keys) assert.equal((await wallet.take(key, 7)).granted, 7);
      await limits.close();
      for (const key of keys) assert.equal((await limits.limit('wallet', new Fixed('1000/h')).peek(key)).remaining, 993);
      assert.equal(await cluster.moved(), before);
    } finally {
      await close();
    }
  }
});
