// Tests that an outage of the server does no harm: calls are decided at once, one at a time asks the server again, and what the server
// refuses to decide is decided by `onDown`.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { performance } from 'node:perf_hooks';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Fixed, Gcra, InvalidArgument, InvalidCost, Lease, LeaseLost, Limits, NoModule, NotAllowed, RateLimited, Unavailable, WrongType } from '../dist/index.js';
import { limited } from '../dist/clock.js';
import { LocalLimiter } from '../dist/local.js';
import { Servers } from '../dist/servers.js';
import { CLIENTS, EACH } from './clients.mjs';
import { eventually, inspect, onServer, startProxy, startServer, stopClock, used, warnings } from './server.mjs';

const HOURLY = new Fixed('1000/h');
const PATIENT = { timeout: 20, connectTimeout: 20 };
/** More than are ever made while a test runs, because the pauses double up to 5 s; and far fewer than the calls. */
const FEW = 14;
const MANY = 400;

for (const [name, { single, down, made }] of Object.entries(CLIENTS)) {
  describe(name, () => {
    let server, admin;
    onServer((...started) => ([server, admin] = started));

    const throughProxy = async (options, use) => {
      const proxy = await startProxy(server);
      try {
        const { client, close } = await single(proxy.path);
        const limits = new Limits(client, { prefix: `${Math.random()}:`, ...options });
        try {
          await use(limits, proxy);
        } finally {
          proxy.pass();
          await limits.close();
          await close();
        }
      } finally {
        await proxy.stop();
      }
    };

    test('a server that does not answer: few calls ask it, and one is enough to go on', () =>
      throughProxy({ onDown: 'open' }, async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        await eventually(async () => (await limit.take('key')).source === 'server');
        proxy.mute();
        const through = limits.letThrough;
        const before = proxy.seen('RL.FIXED') + proxy.accepted();
        for (let n = 0; n < MANY; n++) {
          const { allowed, source, granted } = await limit.take('key', 2, n % 2 ? { id: `call ${n}` } : {});
          assert.deepEqual([allowed, source, granted], [true, 'down', 2]);
        }
        // Calls that wait, and blocks, too.
        assert.equal((await limit.wait('key', 60)).source, 'down');
        assert.equal(await limit.charge('key', 2, { wait: 60 }, ({ decision }) => decision.source), 'down');
        const all = await limits.all([[limit, 'a'], [limit, 'b', 2]], { wait: 60 });
        assert.deepEqual([all.granted, all.decisions.map(({ granted }) => granted), all.headers()], [true, [1, 2], {}]);
        assert.equal(limits.letThrough, through + MANY + 3);
        const asked = proxy.seen('RL.FIXED') + proxy.accepted() - before;
        assert.ok(asked < FEW, `${asked} calls and connections reached the server`);
        proxy.pass();
        await eventually(async () => (await limit.take('other')).source === 'server');
        // They are all sent, although one of them may be too slow on a busy machine.
        const sent = proxy.seen('RL.FIXED');
        await Promise.all(Array.from({ length: 20 }, () => limit.take('other')));
        await eventually(() => proxy.seen('RL.FIXED') === sent + 20);
      }));

    test('many calls at once: one of them asks', () =>
      throughProxy({ onDown: 'open' }, async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        await limit.take('key');
        proxy.mute();
        await limit.take('key');
        const before = proxy.accepted();
        for (let round = 0; round < 10; round++) {
          const all = await Promise.all(Array.from({ length: 100 }, () => limit.take('key')));
          assert.ok(all.every(({ source }) => source === 'down'));
        }
        assert.ok(proxy.accepted() - before < FEW);
      }));

    if (!made) test('a server that refuses connections: few connections are tried', async () => {
      const { client, close } = await down('/nonexistent/redis.sock');
      let tried = 0;
      const duplicate = client.duplicate.bind(client);
      client.duplicate = (...options) => {
        tried++;
        return duplicate(...options);
      };
      const closed = new Limits(client);
      try {
        for (let n = 0; n < MANY; n++) await assert.rejects(closed.limit('api', HOURLY).take('key'), Unavailable);
        assert.ok(tried >= 1 && tried < FEW, `${tried} connections were tried`);
      } finally {
        await closed.close();
        await close();
      }
    });

    test('after a restart, the first call on a connection that is known to be closed works', async () => {
      const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
      const at = join(folder, 'restarted.sock');
      let own = await startServer({ at });
      const { client, close } = await single(at);
      const limits = new Limits(client, PATIENT);
      try {
        const limit = limits.limit('api', HOURLY);
        await limit.take('key');
        await own.stop();
        own = await startServer({ at });
        // valkey-glide connects again by itself, and does not say when.
        const first = limit.take('key');
        assert.equal((await (made ? first.catch(() => limit.take('key')) : first)).remaining, 999);
      } finally {
        await limits.close();
        await close();
        await own.stop();
        await rm(folder, { recursive: true });
      }
    });

    test('a call that has little time left keeps no other call from the server', () =>
      throughProxy(PATIENT, async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        await limit.take('key');
        proxy.mute();
        const call = limit.call(limit.keyOf('key'), []);
        await assert.rejects(limit.shared.servers.send(call, { mostMs: 1 }), (error) => error instanceof Unavailable && error.sent);
        proxy.pass();
        assert.equal((await limit.take('key')).source, 'server');
      }));

    test('what the server refuses to decide', () =>
      throughProxy({ onDown: 'open', ...PATIENT }, async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        for (const [error, advice] of Object.entries({
          'LOADING Redis is loading the dataset in memory': /loading its data/,
          "READONLY You can't write against a read only replica.": /connect to the primary/,
          "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": /replica/,
          'CLUSTERDOWN The cluster is down': /slots/,
          'MISCONF Errors writing to the AOF file: No space left on device': /log/,
          'NOREPLICAS Not enough good replicas to write.': /replicas/,
          "OOM command not allowed when used memory > 'maxmemory'.": /maxmemory/,
          'BUSY Redis is busy running a script.': /script/,
          'TRYAGAIN Multiple keys request during rehashing of slot': /moved/,
          'ERR too many waiting calls': /too many waiting calls/,
          'NOAUTH Authentication required.': /password/,
          "NOPERM User default has no permissions to run the 'rl.fixed' command": /ACL/,
          "ERR unknown command 'RL.FIXED', with args beginning with: ": /loadmodule/,
        })) {
          proxy.refuse(error);
          assert.equal((await limit.take('key')).source, 'down', error);
          const closed = await refusal(proxy, single);
          assert.match(closed.message, advice);
          assert.equal(closed.sent, false, error);
          const Class = /^ERR unknown/.test(error) ? NoModule : /^NO(AUTH|PERM)/.test(error) ? NotAllowed : Unavailable;
          assert.equal(closed.constructor, Class, error);
        }
        // These say that the program is wrong.
        for (const [error, Class] of [
          ['ERR limit must be a whole number', InvalidArgument],
          ["ERR unknown option 'NEWER'", InvalidArgument],
          ['WRONGTYPE Operation against a key', WrongType],
        ]) {
          proxy.refuse(error);
          await assert.rejects(limit.take('key'), (raised) => raised.constructor === Class);
        }
        proxy.pass();
        assert.equal((await limit.take('key')).source, 'server');
      }));

    /** The error of a call without a decision. */
    async function refusal(proxy, connect) {
      const { client, close } = await connect(proxy.path);
      const limits = new Limits(client, PATIENT);
      try {
        return await limits.limit('api', HOURLY).take('key').then(() => assert.fail(), (error) => error);
      } finally {
        await limits.close();
        await close();
      }
    }

    test('a password that is missing, changed, or wrong, and rights that were taken', async () => {
      const own = await startServer();
      const owner = new Redis({ path: own.path });
      const { client, close } = await single(own.path);
      const [open, closed] = ['open', 'closed'].map((onDown) => new Limits(client, { ...PATIENT, onDown }));
      try {
        assert.equal((await open.limit('api', HOURLY).take('key')).source, 'server');
        await owner.acl('SETUSER', 'default', '-rl.fixed');
        await assert.rejects(closed.limit('api', HOURLY).take('key'), NotAllowed);
        assert.equal((await open.limit('api', HOURLY).take('key')).source, 'down');
        await owner.acl('SETUSER', 'default', '+@all');
        await owner.config('SET', 'requirepass', 'other');
        await owner.client('KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        await eventually(async () => (await open.limit('api', HOURLY).take('key')).source === 'down');
        await eventually(() => closed.limit('api', HOURLY).take('key').then(assert.fail, (error) => error instanceof NotAllowed));
      } finally {
        await Promise.all([open, closed].map((limits) => limits.close()));
        owner.disconnect();
        await close();
        await own.stop();
      }
    });

    if (name.startsWith('ioredis')) {
      test('with a wrong password, no call runs as the default user', async () => {
        const own = await startServer();
        const owner = new Redis({ path: own.path });
        try {
          for (let i = 0; i < 20; i++) {
            const { client, close } = await single(own.path, { username: 'app', password: 'wrong' });
            const limits = new Limits(client, PATIENT);
            await assert.rejects(limits.limit('api', HOURLY).take('key'), NotAllowed).finally(async () => {
              await limits.close();
              await close();
            });
          }
          assert.equal(await owner.dbsize(), 0);
        } finally {
          owner.disconnect();
          await own.stop();
        }
      });
    }

    test('what a block has charged is settled, although the server was found down', (t) =>
      throughProxy({ timeout: 1.5, connectTimeout: 20 }, async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        await limit.charge('key', 10, {}, async (charge) => {
          proxy.mute();
          stopClock(t);
          await assert.rejects(limit.take('other'), Unavailable);
          await assert.rejects(limit.take('other'), { message: /asked again soon/ });
          proxy.pass();
          charge.used = 3;
        });
        assert.equal(await used(admin, limit.keyOf('key')), 3);
        assert.equal((await inspect(admin, limit.keyOf('key'))).ids, 0);
        // That was a success, so the next call is not kept from the server.
        assert.equal((await limit.take('key')).source, 'server');
      }));
  });
}

describe('without a server', () => {
  const nowhere = async (options, use) => {
    const { client, close } = await CLIENTS['ioredis 5'].down('/nonexistent/redis.sock');
    const limits = new Limits(client, options);
    try {
      await use(limits, limits.limit('api', HOURLY));
    } finally {
      await limits.close();
      await close();
    }
  };

  test('it is logged once a second at most, with the cause', () =>
    nowhere({ onDown: 'open' }, async (limits, limit) => {
      const said = warnings();
      const began = performance.now();
      await Promise.all(Array.from({ length: 50 }, () => limit.take('key')));
      const most = 1 + Math.floor((performance.now() - began) / 1000);
      const lines = await said.stop();
      assert.ok(lines.length >= 1 && lines.length <= most, lines.join('\n'));
      assert.match(lines[0], /calls are let through: .*ENOENT.*; does the server run, and is its address right\?/);
      const lease = limits.limit('jobs', new Lease(1, 30));
      assert.equal(await lease.hold('a', {}, (held) => (held.check(), held.decision.source)), 'down');
      // Nothing can be decided instead: null would say that the server does not know the id.
      for (const call of [() => limit.settle('a', 'id', 1), () => limit.release('a', 'id'), () => lease.renew('a', 'id')]) {
        await assert.rejects(call, Unavailable);
      }
      assert.deepEqual([(await limit.force('a', 3)).granted, (await limit.refund('a', 3)).granted, (await limit.reserve('a', 5)).wait], [3, 3, 0]);
      assert.equal(limits.letThrough, 54);
    }));

  test('closed: errors, also of what gives back', () =>
    nowhere({}, async (limits, limit) => {
      const calls = [limit.take('a'), limit.settle('a', 'id', 1), limit.release('a', 'id'), limits.all([[limit, 'a']])];
      for (const call of calls) await assert.rejects(call, Unavailable);
      await assert.rejects(limits.admit([[limit, 'a']], { estimate: 1 }, assert.fail), Unavailable);
      assert.equal(limits.letThrough, 0);
    }));

  test('a limiter in the process: several limits, all or none', () =>
    nowhere({ onDown: new Gcra('4/h') }, async (limits, limit) => {
      const [day, lease] = [limits.limit('day', HOURLY), limits.limit('jobs', new Lease(1, 30))];
      const first = await limits.all([[limit, 'a', 3], [day, 'a', 4], [lease, 'a']]);
      assert.deepEqual([first.granted, first.decisions.map(({ granted, remaining }) => [granted, remaining])], [true, [[3, 1], [4, 0], [1, 0]]]);
      const second = await limits.all([[limit, 'a', 1], [day, 'a', 1]]);
      assert.deepEqual([second.granted, second.decisions.map(({ granted }) => granted)], [false, [1, 0]]);
      assert.ok(second.wait > 800 && second.wait <= 900);
      assert.equal((await limits.all([[day, 'a', 5]])).wait, null);
      // The first rule was not taken.
      assert.equal((await limit.peek('a')).remaining, 1);
      await assert.rejects(limits.admit([[day, 'a']], { estimate: 1 }, assert.fail), RateLimited);
      await assert.rejects(limit.take('a', 0), InvalidCost);
      assert.equal((await limit.charge('a', 1, {}, (charge) => (charge.used = 7))), 7);
      assert.equal(limits.letThrough, 3);
    }));
});

describe('what says that a server is down', () => {
  const CALL = { name: 'RL.FIXED', args: ['key'], keys: ['key'] };
  /** What a client finds or opens after so long a time as it is given, or when the test lets it. */
  const slow = () => {
    let pass;
    const passed = new Promise((resolve) => (pass = resolve));
    return { pass, come: (ms) => limited(ms, undefined, passed) };
  };
  /** Calls to one server. `open` and `search` are what the client does, and `reply` is what the server does. */
  const serversOf = ({ open, search, reply, timeoutMs = 20_000, connectMs = 20_000 }) => {
    const connection = { send: reply ?? (async () => 'a reply'), isOpen: () => true, close() {} };
    const node = { name: 'one', open: async (ms) => (await open?.(ms), connection) };
    let known = search ? undefined : node;
    const find = async (_, ms) => {
      await search(ms);
      known = node;
    };
    return new Servers({ locate: () => known, search: find, at() {}, isClosed: () => false, onClose: () => () => {} }, timeoutMs, connectMs);
  };
  const gotten = { reply: 'a reply', before: false };
  const never = () => new Promise(() => {});
  const again = (servers) => assert.rejects(servers.send(CALL), { message: /asked again soon/ });

  for (const what of ['open', 'search']) {
    test(`not that a call has no time left, and the others go on with what it has begun: ${what}`, async () => {
      const { come, pass } = slow();
      const servers = serversOf({ [what]: come, search: what === 'search' ? come : undefined });
      await assert.rejects(servers.send(CALL, { mostMs: 1 }), Unavailable);
      const other = servers.send(CALL);
      await setImmediate();
      pass();
      assert.deepEqual(await other, gotten);
    });

    test(`that nothing came in the full time: ${what}`, async (t) => {
      t.mock.method(performance, 'now', () => 1000);
      const servers = serversOf({ [what]: never, search: what === 'search' ? never : undefined, connectMs: 1 });
      await assert.rejects(servers.send(CALL), Unavailable);
      await again(servers);
    });
  }

  test('that no reply came in the full time, also to what gives back', async (t) => {
    t.mock.method(performance, 'now', () => 1000);
    for (const ends of [false, true]) {
      const servers = serversOf({ reply: never, timeoutMs: 1 });
      await assert.rejects(servers.send(CALL, { ends }), Unavailable);
      await again(servers);
    }
  });

  test('a call by policy keys, and then without them, has the full time for each', async (t) => {
    let now = 1000;
    t.mock.method(performance, 'now', () => now);
    const replies = [
      async () => {
        now += 15_000;
        throw new Error('NOPOLICY none of the policy keys exists');
      },
      async () => 'a reply',
    ];
    const servers = serversOf({ reply: () => replies.shift()() });
    assert.deepEqual(await servers.send({ ...CALL, otherwise: CALL }), gotten);
  });

  test('that it refuses a connection, also to a call that has little time left', async (t) => {
    t.mock.method(performance, 'now', () => 1000);
    const servers = serversOf({ open: () => Promise.reject(new Error('refused')) });
    await assert.rejects(servers.send(CALL, { mostMs: 5 }), Unavailable);
    await again(servers);
  });

  test('that it refuses the password, which each call says until it is asked again', async (t) => {
    t.mock.method(performance, 'now', () => 1000);
    const servers = serversOf({ open: () => Promise.reject(new Error('WRONGPASS invalid username-password pair')) });
    const refused = { name: 'NotAllowed', message: /password/ };
    await assert.rejects(servers.send(CALL), refused);
    await assert.rejects(servers.send(CALL), refused);
    await again(servers);
  });
});

test('the limiter in the process: exact, and with 10 000 keys at most', (t) => {
  let us = 5_000_000;
  t.mock.method(performance, 'now', () => us / 1000);
  const limiter = new LocalLimiter(new Gcra('3/s'));
  // 3 at once, and then one each 333 333 1/3 us.
  for (const left of [2, 1, 0]) assert.deepEqual(limiter.take('a', 1).slice(0, 3), [1, 3, left]);
  assert.deepEqual(limiter.take('a', 1), [0, 3, 0, 334, 1000]);
  us += 333_333;
  assert.deepEqual(limiter.take('a', 1).slice(0, 4), [0, 3, 0, 1]);
  us += 1;
  assert.deepEqual(limiter.take('a', 1).slice(0, 4), [1, 3, 0, 0]);
  // For a day, one whenever it is due: no drift.
  for (let n = 2; n <= 1000; n++) {
    us = 5_000_000 + Math.ceil((n * 1_000_000) / 3) - 1;
    assert.equal(limiter.take('a', 1)[0], 0, String(n));
    us++;
    assert.equal(limiter.take('a', 1)[0], 1, String(n));
  }
  assert.deepEqual(limiter.take('b', 5, { upTo: true }).slice(0, 3), [3, 3, 0]);
  assert.deepEqual(new LocalLimiter(new Gcra('1000000000000/d')).take('a', 1e12).slice(0, 3), [1e12, 1e12, 0]);
  assert.deepEqual(new LocalLimiter(new Gcra('0/s')).take('a', 1), [0, 0, 0, -1, 0]);
  for (let n = 0; n < 9_999; n++) limiter.take(`key ${n}`, 3);
  // A key is in use although all its calls are denied.
  assert.equal(limiter.take('key 0', 1)[0], 0);
  assert.equal(limiter.take('key 1', 1, { peek: true })[0], 0);
  for (let n = 0; n < 2; n++) limiter.take(`new ${n}`, 1);
  assert.deepEqual([limiter.take('key 0', 1)[0], limiter.take('key 1', 1)[0], limiter.take('key 2', 1)[0]], [0, 0, 1]);
  // It was used longest ago, and is full again.
  assert.equal(limiter.take('b', 1)[0], 1);
});

for (const [name, { single }] of EACH) {
  test(`a lease is lost at the holder's own deadline, also when the loop of events was blocked: ${name}`, async () => {
    const server = await startServer();
    const { client, close } = await single(server.path);
    const limits = new Limits(client, PATIENT);
    try {
      const lease = limits.limit('jobs', new Lease(1, 1));
      const steps = [];
      await assert.rejects(lease.hold('key', {}, async (held) => {
        const { signal } = held;
        // Without a timer's turn, and without a renewal.
        spawnSync('sleep', ['1.2']);
        assert.throws(() => held.check(), LeaseLost);
        assert.ok(signal.aborted && signal.reason instanceof LeaseLost);
        steps.push('checked');
        throw signal.reason;
      }), LeaseLost);
      await assert.rejects(lease.hold('key', {}, async ({ signal }) => {
        await new Promise((done) => {
          setTimeout(() => {
            steps.push(signal.aborted);
            done();
          }, 1100);
          setTimeout(() => spawnSync('sleep', ['1.2']), 1);
        });
      }), LeaseLost);
      assert.deepEqual(steps, ['checked', true]);
    } finally {
      await limits.close();
      await close();
      await server.stop();
    }
  });
}

// valkey-glide has threads of its own, which time out by themselves.
for (const [name, { single }] of EACH.filter(([, { made }]) => !made)) {
  test(`a reply that is here when the loop of events comes back is not late: ${name}`, async () => {
    const server = await startServer();
    const { client, close } = await single(server.path);
    const limits = new Limits(client, { timeout: 1.5, connectTimeout: 20 });
    try {
      const limit = limits.limit('api', HOURLY);
      await eventually(() => limit.take('key').then(() => true, () => false));
      const call = limit.take('key');
      await setImmediate();
      await setImmediate();
      spawnSync('sleep', ['3']);
      assert.equal((await call).source, 'server');
    } finally {
      await limits.close();
      await close();
      await server.stop();
    }
  });
}
