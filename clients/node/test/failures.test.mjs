// Tests what happens when replies are lost, when a server is down, slow or fails over, and when a wait or a lease ends early.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Closed, Fixed, Gcra, InvalidLimit, Lease, LeaseLost, Limits, RateLimited, Unavailable } from '../dist/index.js';
import { CLIENTS } from './clients.mjs';
import { aborted, eventually, info, inspect, onServer, startCluster, startProxy, startSentinel, startServer, stats, used, warnings } from './server.mjs';

const HOURLY = new Fixed('10/h');
/** Seconds: longer than any command takes on a busy machine. */
const PATIENT = { timeout: 20, connectTimeout: 20 };

let server, admin;
onServer((...started) => ([server, admin] = started));

/** The ids of the clients that are blocked. */
const blocked = async (node) => [...(await node.client('LIST')).matchAll(/^id=(\d+) .* flags=\w*b/gm)].map(([, id]) => id);

/** Closes the connection of a client while two calls are under way, on a limit that has 9 units left. */
async function losesConnection(limit, node) {
  try {
    await node.client('PAUSE', 60_000, 'WRITE');
    const [lost, repeated] = [limit.take('key'), limit.take('key', 1, { id: 'kept' })];
    const ended = assert.rejects(lost, (error) => error instanceof Unavailable && error.sent);
    await eventually(async () => (await blocked(node)).length > 0);
    for (const id of await blocked(node)) await node.client('KILL', 'ID', id);
    await ended;
    await node.client('UNPAUSE');
    assert.equal((await repeated).granted, 1);
    // Clients that repeat calls do so within this time.
    await sleep(1000);
    assert.equal((await limit.take('key')).remaining, 7);
    assert.equal(await used(node, limit.keyOf('key')), 3);
  } finally {
    await node.client('UNPAUSE');
  }
}

/** Runs `use` with limits of a client that is connected through a proxy. */
async function throughProxyTo(server, connect, options, use) {
  const proxy = await startProxy(server);
  try {
    const { client, close } = await connect(proxy.path);
    try {
      const limits = new Limits(client, { prefix: `${Math.random()}:`, ...options });
      await use(limits, proxy, client);
      await limits.close();
    } finally {
      await close();
    }
  } finally {
    await proxy.stop();
  }
}

// Several at a time, each on a server of its own: they mostly wait.
describe('each client', { concurrency: 4 }, () => Object.entries(CLIENTS).forEach(([name, { single, down, made }]) => {
  describe(name, { concurrency: 1 }, () => {
    let server, admin;
    onServer((...started) => ([server, admin] = started));
    const throughProxy = (...args) => throughProxyTo(server, ...args);
    const waiting = (count) => eventually(async () => (await info(admin, 'rl_waiting_clients')) === count);

    describe(`a lost reply: ${name}`, () => {
      for (const [what, charged] of [['reply', 1], ['request', 0]]) {
        test(`a call without an id is sent once: ${what}`, () =>
          throughProxy(single, { ...PATIENT }, async (limits, proxy) => {
            const limit = limits.limit('api', HOURLY);
            proxy.lose(what, 'RL.FIXED');
            await assert.rejects(limit.take('key'), (error) => error.name === 'Unavailable' && error.sent && error.cause instanceof Error);
            assert.equal(proxy.lost.length, 1);
            // The client connects again. What it would send again comes before this.
            assert.equal((await limit.peek('key')).remaining, 10 - charged);
            assert.equal((await limit.take('key')).remaining, 9 - charged);
            assert.equal(proxy.seen('RL.FIXED'), 2);
          }));

        test(`a call with an id is repeated, and charged once: ${what}`, () =>
          throughProxy(single, { ...PATIENT }, async (limits, proxy) => {
            const limit = limits.limit('api', HOURLY);
            proxy.lose(what, 'RL.FIXED');
            assert.equal((await limit.take('key', 2, { id: 'job-1' })).remaining, 8);
            assert.equal((await limit.peek('key')).remaining, 8);
            assert.ok(proxy.seen('job-1') >= 2);
            proxy.lose(what, 'RL.FIXED');
            const result = await limit.charge('key', 4, {}, async (charge) => {
              assert.equal((await limit.peek('key')).remaining, 4);
              charge.used = 1;
              return 'done';
            });
            assert.equal(result, 'done');
            assert.equal((await limit.peek('key')).remaining, 7);
          }));

        test(`a settlement is repeated, and the excess is charged once: ${what}`, () =>
          throughProxy(single, { ...PATIENT }, async (limits, proxy) => {
            const limit = limits.limit('api', HOURLY);
            await limit.charge('key', 4, {}, (charge) => {
              proxy.lose(what, 'RL.SETTLE');
              charge.used = 6;
            });
            assert.equal(proxy.lost.length, 1);
            assert.equal((await limit.peek('key')).remaining, 4);
            assert.equal(proxy.seen('FORCE'), 0);
          }));
      }

      test('RL.ALL is repeated with an id, and charged once', () =>
        throughProxy(single, { ...PATIENT }, async (limits, proxy) => {
          const [one, other] = [limits.limit('{t}-one', HOURLY), limits.limit('{t}-other', HOURLY)];
          proxy.lose('reply', 'RL.ALL');
          const decision = await limits.all([[one, 'a', 2], [other, 'a', 3]], { id: 'request-1' });
          assert.deepEqual(decision.decisions.map(({ remaining }) => remaining), [8, 7]);
          proxy.lose('reply', 'RL.ALL');
          await assert.rejects(limits.all([[one, 'a', 2], [other, 'a', 3]]), Unavailable);
          assert.deepEqual([(await one.peek('a')).remaining, (await other.peek('a')).remaining], [6, 4]);
        }));

      test('a reply that does not come: the call ends after the time-out', () =>
        throughProxy(single, { timeout: 0.3, connectTimeout: 20 }, async (limits, proxy) => {
          proxy.lose('silence', 'RL.FIXED');
          await assert.rejects(limits.limit('api', HOURLY).take('key'), (error) => error instanceof Unavailable && error.sent);
          await eventually(() => proxy.seen('RL.FIXED') > 0);
          assert.equal(proxy.seen('RL.FIXED'), 1);
        }));
    });

    test(`a call that was given up while there was no connection is not sent later: ${name}`, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
      const { client, close } = await down(join(folder, 'late.sock'));
      const limits = new Limits(client, PATIENT);
      let late, direct;
      try {
        const limit = limits.limit('api', HOURLY);
        await assert.rejects(limit.take('key'), Unavailable);
        await assert.rejects(limit.charge('key', 2, {}, () => assert.fail('it was not charged')), Unavailable);
        late = await startServer({ at: join(folder, 'late.sock') });
        direct = new Redis({ path: late.path });
        await eventually(() => limit.take('key').then(() => true, (error) => !(error instanceof Unavailable)));
        assert.equal((await limit.take('key')).remaining, 8);
        assert.equal(await stats(direct, 'rl.fixed'), 2);
      } finally {
        await limits.close();
        direct?.disconnect();
        await close();
        await late?.stop();
        await rm(folder, { recursive: true });
      }
    });

    describe(`a wait: ${name}`, () => {
      /** Takes all units of a key for an hour. */
      async function exhausted(limits, key) {
        const limit = limits.limit('queue', HOURLY);
        assert.equal((await limit.take(key, 10)).granted, 10);
        return limit;
      }
      // Too short for a wait. These are options of the client.
      const short = (path) => single(path, { commandTimeout: 3000, socketTimeout: 3000, socket: { socketTimeout: 3000 } });

      test('it lasts longer than the time-outs of the client, beside other commands', async () => {
        const { client, close } = await short(server.path);
        try {
          const limits = new Limits(client, { prefix: `${name}:long:`, ...PATIENT });
          const limit = await exhausted(limits, 'key');
          const waiter = limit.wait('key', '2h');
          await waiting(1);
          for (let second = 0; second < 8; second++) {
            await sleep(500);
            assert.equal((await limit.peek('other')).remaining, 10, 'the shared connection answers meanwhile');
          }
          assert.equal(await info(admin, 'rl_waiting_clients'), 1);
          await admin.del(limit.keyOf('key'));
          assert.equal((await waiter).granted, 1);
          assert.equal(await used(admin, limit.keyOf('key')), 1);
        } finally {
          await close();
        }
      });

      test('an abort ends it: it leaves the line and is not charged', async () => {
        const { client, close } = await single(server.path);
        try {
          const limits = new Limits(client, { prefix: `${name}:abort:`, ...PATIENT });
          const limit = await exhausted(limits, 'key');
          const [abandoned, clients] = [await info(admin, 'rl_waits_abandoned'), await info(admin, 'connected_clients')];
          const leaver = new AbortController();
          const left = assert.rejects(limit.wait('key', '2h', 10, { signal: leaver.signal }), { message: 'no longer needed' });
          await waiting(1);
          const next = limit.wait('key', '2h');
          await waiting(2);
          leaver.abort(new Error('no longer needed'));
          await left;
          await waiting(1);
          assert.equal(await info(admin, 'rl_waits_abandoned'), abandoned + 1);
          await admin.del(limit.keyOf('key'));
          assert.equal((await next).granted, 1);
          await limits.close();
          assert.deepEqual(await used(admin, limit.keyOf('key')), 1);
          // The connections of the waits are closed.
          await eventually(async () => (await info(admin, 'connected_clients')) === clients - 1);
          await assert.rejects(limit.wait('key', 5, 1, { signal: AbortSignal.abort(new Error('before')) }), { message: 'before' });
          assert.equal(await used(admin, limit.keyOf('key')), 1);
        } finally {
          await close();
        }
      });

      // A function makes the clients of valkey-glide, and their connections close as those of other programs.
      if (!made) test('a block that ends after the limits were closed leaves no connection', async () => {
        const { client, close } = await single(server.path);
        try {
          const limits = new Limits(client, { prefix: `${name}:late:`, ...PATIENT });
          const clients = await info(admin, 'connected_clients');
          const jobs = limits.limit('jobs', new Lease(1, '1h'));
          let end;
          const block = jobs.hold('x', {}, () => new Promise((resolve) => (end = resolve)));
          await eventually(() => end);
          await limits.close();
          end();
          await block;
          assert.equal((await inspect(admin, jobs.keyOf('x')))?.held ?? 0, 0);
          await eventually(async () => (await info(admin, 'connected_clients')) === clients);
        } finally {
          await close();
        }
      });

      if (!made) test('an abort while its connection is being made leaves no connection', async () => {
        const { client, close } = await single(server.path);
        try {
          const limits = new Limits(client, { prefix: `${name}:early:`, ...PATIENT });
          const limit = await exhausted(limits, 'key');
          const clients = await info(admin, 'connected_clients');
          let leaver;
          const duplicate = client.duplicate.bind(client);
          client.duplicate = (options) => {
            const own = duplicate(options);
            const open = own.connect.bind(own);
            own.connect = () => {
              // Before the loop of events hears that the socket is connected.
              process.nextTick(() => leaver.abort(new Error('too early')));
              return open();
            };
            return own;
          };
          const accepted = () => info(admin, 'total_connections_received');
          const before = await accepted();
          for (let n = 0; n < 5; n++) {
            leaver = new AbortController();
            await assert.rejects(limit.wait('key', '2h', 1, { signal: leaver.signal }), { message: 'too early' });
          }
          await limits.close();
          // A connection that the client still makes arrives, and is closed.
          await sleep(100);
          assert.ok((await accepted()) <= before + 5);
          await eventually(async () => (await info(admin, 'connected_clients')) === clients - 1);
        } finally {
          await close();
        }
      });

      // The call reaches the server after the call that gives it back, because each has a connection of its own.
      const late = {
        charge: (limits, limit, signal) => limit.charge('key', 4, { wait: '2h', signal }, () => assert.fail('it was aborted')),
        admit: (limits, limit, signal) => {
          return limits.admit([[limit, 'key']], { estimate: 4, wait: '2h', signal }, () => assert.fail('it was aborted'));
        },
        all: (limits, limit, signal) => limits.all([[limit, 'key', 4]], { wait: '2h', signal }),
        wait: (limits, limit, signal) => limit.wait('key', '2h', 4, { signal }),
      };
      for (const [method, begin] of Object.entries(late)) {
        // For valkey-glide, the server closes the connection by CLIENT KILL. So the call is not executed.
        if (!made) test(`${method}: what is granted only after an abort is given back`, () =>
          throughProxyTo(server, single, { ...PATIENT }, async (limits, proxy) => {
            const limit = await exhausted(limits, 'key');
            const word = limit.keyOf('key');
            const { held, pass } = proxy.hold('BLOCK');
            const leaver = new AbortController();
            const left = assert.rejects(begin(limits, limit, leaver.signal), { message: 'too late' });
            await eventually(held);
            const releases = await stats(admin, 'rl.release');
            leaver.abort(new Error('too late'));
            await left;
            await eventually(async () => (await stats(admin, 'rl.release')) > releases);
            await admin.del(word);
            const calls = async () => (await stats(admin, 'rl.fixed')) + (await stats(admin, 'rl.all'));
            const before = await calls();
            pass();
            await eventually(async () => (await calls()) > before);
            await eventually(async () => (await used(admin, word)) === 0);
          }));
      }

      test('with an id of the program, it is given back once', () =>
        throughProxyTo(server, single, { ...PATIENT }, async (limits) => {
          const limit = await exhausted(limits, 'key');
          const leaver = new AbortController();
          const waits = { id: 'mine', wait: '2h', signal: leaver.signal };
          const left = assert.rejects(limit.charge('key', 1, waits, () => assert.fail('it was aborted')), { message: 'too late' });
          await waiting(1);
          const releases = await stats(admin, 'rl.release');
          leaver.abort(new Error('too late'));
          await left;
          await sleep(300);
          await limits.close();
          assert.equal(await stats(admin, 'rl.release'), releases + 1);
        }));

      test('close ends it with Closed, also if calls are let through when the server is down', async () => {
        const { client, close } = await single(server.path);
        try {
          for (const onDown of ['closed', 'open']) {
            const limits = new Limits(client, { prefix: `${name}:close:${onDown}:`, ...PATIENT, onDown });
            const limit = await exhausted(limits, 'key');
            const lease = limits.limit('jobs', new Lease(1, 30));
            await lease.hold('key', {}, async () => {
              const ended = [
                limit.wait('key', '2h'),
                limit.charge('key', 2, { wait: '2h' }, () => assert.fail('it was not charged')),
                limits.all([[limit, 'key'], [limits.limit('other', HOURLY), 'key']], { wait: '2h' }),
                lease.hold('key', { wait: '2h' }, () => assert.fail('two hold it')),
              ].map((call) => assert.rejects(call, Closed));
              await waiting(4);
              await limits.close();
              await Promise.all(ended);
              await waiting(0);
            });
            assert.equal(await used(admin, limit.keyOf('key')), 10);
            await assert.rejects(lease.peek('key'), Closed);
            await assert.rejects(limit.take('other'), Closed);
          }
        } finally {
          await close();
        }
      });

      test('many wait at the same time, without a warning of Node.js', async () => {
        const { client, close } = await single(server.path);
        const said = [];
        const add = (warning) => said.push(warning);
        process.on('warning', add);
        try {
          const limits = new Limits(client, { prefix: `${name}:many:`, ...PATIENT });
          const limit = await exhausted(limits, 'key');
          let granted = 0;
          const waits = Array.from({ length: 15 }, () => limit.wait('key', '2h').then(() => granted++, (error) => assert.ok(error instanceof Closed)));
          await waiting(15);
          await admin.del(limit.keyOf('key'));
          await eventually(() => granted === 10);
          await limits.close();
          await Promise.all(waits);
          assert.equal(granted, 10);
          assert.deepEqual(said.filter(({ name }) => name.startsWith('MaxListeners')), []);
        } finally {
          process.off('warning', add);
          await close();
        }
      });

      test('RL.ALL, a charge and a lease wait, too', async () => {
        const { client, close } = await single(server.path);
        try {
          const limits = new Limits(client, { prefix: `${name}:{all}:`, ...PATIENT });
          const limit = await exhausted(limits, 'key');
          const lease = limits.limit('jobs', new Lease(1, 30));
          const second = limits.limit('second', HOURLY);
          const log = [];
          await lease.hold('key', {}, async () => {
            const waiters = [
              limits.all([[limit, 'key'], [second, 'key', 3]], { wait: '2h' }).then(({ granted }) => log.push(granted)),
              limit.charge('key', 2, { wait: '2h' }, (charge) => log.push(charge.decision.granted)),
            ];
            const leaver = new AbortController();
            const left = assert.rejects(lease.hold('key', { wait: 60, signal: leaver.signal }, () => assert.fail()), /enough/);
            await waiting(3);
            leaver.abort(new Error('enough'));
            await left;
            await waiting(2);
            await admin.del(limit.keyOf('key'));
            await Promise.all(waiters);
          });
          assert.deepEqual(log.sort(), [2, true]);
          assert.equal(await used(admin, limit.keyOf('key')), 3);
          await limits.close();
          assert.equal((await inspect(admin, lease.keyOf('key')))?.held ?? 0, 0);
        } finally {
          await close();
        }
      });

      test('neither an UNBLOCKED error nor a lost connection ends it, and it is charged once', () =>
        throughProxy(single, PATIENT, async (limits) => {
          const limit = await exhausted(limits, 'key');
          const waits = [limit.wait('key', '2h'), limit.charge('key', 2, { wait: '2h', id: 'kept' }, ({ decision }) => decision)];
          await waiting(2);
          const ids = () => blocked(admin);
          const first = await ids();
          for (const id of first) await admin.client('UNBLOCK', id, 'ERROR');
          await eventually(async () => (await ids()).filter((id) => !first.includes(id)).length === 2);
          const second = await ids();
          for (const id of second) await admin.client('KILL', 'ID', id);
          await eventually(async () => (await ids()).filter((id) => !second.includes(id)).length === 2);
          await admin.del(limit.keyOf('key'));
          assert.deepEqual((await Promise.all(waits)).map(({ granted }) => granted), [1, 2]);
          await limits.close();
          assert.equal(await used(admin, limit.keyOf('key')), 3);
          // No id is left that nobody needs.
          assert.equal((await inspect(admin, limit.keyOf('key'))).ids, 0);
        }));

      test('it goes on through an outage that is longer than the time-outs, until its own time is over', async () => {
        const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
        const at = join(folder, 'server.sock');
        let own = await startServer({ at });
        const direct = new Redis({ path: at }).on('error', () => {});
        const { client, close } = await single(at);
        const limits = new Limits(client, { timeout: 0.5, connectTimeout: 0.5 });
        try {
          const limit = limits.limit('queue', HOURLY);
          await eventually(() => limit.take('key', 10).then(({ source }) => source === 'server', () => false));
          const long = limit.charge('key', 1, { wait: '2h', id: 'kept' }, ({ decision }) => decision);
          await direct.call('RL.LEASE', 'jobs:key', 1, '1h', 'ID', 'other');
          const lease = limits.limit('jobs', new Lease(1, '1h'));
          const short = assert.rejects(lease.hold('key', { wait: 1 }, () => assert.fail('nothing was free')), Unavailable);
          await eventually(async () => (await info(direct, 'rl_waiting_clients')) === 2);
          await own.kill();
          await short;
          await sleep(1000);
          own = await startServer({ at });
          assert.equal((await long).granted, 1);
        } finally {
          await limits.close();
          direct.disconnect();
          await close();
          await own.stop();
          await rm(folder, { recursive: true });
        }
      });
    });

    describe(`a lease: ${name}`, () => {
      test('it is renewed while the body runs, and released at its end', () =>
        throughProxy(single, { ...PATIENT }, async (limits, proxy) => {
          const lease = limits.limit('jobs', new Lease(1, 4));
          await assert.rejects(lease.hold('key', {}, async (held) => {
            // It is renewed at each third of its ttl, so this is longer than one.
            while (proxy.seen('RENEW') < 4) {
              assert.equal((await lease.peek('key')).allowed, false);
              await assert.rejects(lease.hold('key', {}, () => assert.fail('two hold it')), RateLimited);
              await sleep(100);
            }
            assert.ok(!held.signal.aborted);
            throw new Error('of the body');
          }), { message: 'of the body' });
          assert.equal((await lease.peek('key')).remaining, 1);
        }));

      test('it is lost when its key is deleted', () =>
        throughProxy(single, { ...PATIENT }, async (limits) => {
          const lease = limits.limit('jobs', new Lease(1, 1.5));
          await assert.rejects(lease.hold('key', {}, async (held) => {
            await admin.del(lease.keyOf('key'));
            await aborted(held.signal);
            assert.ok(held.signal.reason instanceof LeaseLost);
          }), LeaseLost);
        }));

      test('it is lost when no renewal is answered for a whole ttl', async () => {
        const own = await startServer();
        const { client, close } = await single(own.path);
        try {
          const said = warnings();
          // After the server's end, valkey-glide finds out only by these times.
          const limits = new Limits(client, { timeout: 2, connectTimeout: 2 });
          await assert.rejects(limits.limit('jobs', new Lease(1, 1.5)).hold('key', {}, async (held) => {
            await own.kill();
            await aborted(held.signal);
            assert.throws(() => held.check(), LeaseLost);
          }), LeaseLost);
          await limits.close();
          assert.match((await said.stop()).join(), /was not released, and lapses/);
        } finally {
          await close();
          await own.stop();
        }
      });

      test('the signal of the caller aborts that of the lease, which is released', () =>
        throughProxy(single, { ...PATIENT }, async (limits) => {
          const lease = limits.limit('jobs', new Lease(1, 30));
          const stop = new AbortController();
          await assert.rejects(lease.hold('key', { signal: stop.signal }, async (held) => {
            stop.abort(new Error('stop'));
            assert.ok(held.signal.aborted);
          }), { message: 'stop' });
          assert.equal((await lease.peek('key')).remaining, 1);
        }));
    });
  });
}));

test('a client of another kind, or a wrong option, is refused', () => {
  for (const client of [undefined, null, {}, 'redis://127.0.0.1', { sendCommand() {} }, { customCommand() {} }, { getMasterNode() {} }]) {
    assert.throws(() => new Limits(client), TypeError);
  }
  const client = () => assert.fail('a client was made');
  for (const wrong of [{ onDown: 'ajar' }, { timeout: 0 }, { connectTimeout: -1 }, { repeatDenials: 1.1 }, { patience: 1 }, { prefix: 1 }]) {
    assert.throws(() => new Limits(client, wrong), InvalidLimit);
  }
});

describe('in a cluster', () => {
  let cluster;
  before(async () => (cluster = await startCluster()));
  after(() => cluster?.stop());
  const keys = Array.from({ length: 40 }, (_, n) => `user-${n}`);

  for (const [name, client] of Object.entries(CLIENTS)) {
    for (const enableAutoPipelining of name.startsWith('ioredis') ? [false, true] : [undefined]) {
      test(`each call goes to the right node at once: ${name}${enableAutoPipelining ? ', auto pipelining' : ''}`, async () => {
        await Promise.all(cluster.each.map((node) => node.flushall()));
        const { client: redis, close } = await client.cluster(cluster.nodes, { enableAutoPipelining });
        try {
          const before = await cluster.moved();
          const limits = new Limits(redis, PATIENT);
          const limit = limits.limit('api', new Gcra('4/h'));
          const lease = limits.limit('jobs', new Lease(2, 30));
          await Promise.all(keys.map(async (key) => {
            assert.equal((await limit.take(key)).remaining, 3);
            assert.equal((await limit.peek(key)).remaining, 3);
            await limit.charge(key, 2, {}, (charge) => (charge.used = 1));
            await lease.hold(key, {}, () => {});
            const tagged = limits.limit(`{${key}}-day`, HOURLY);
            assert.ok((await limits.all([[tagged, 'a'], [tagged, 'b', 2]])).granted);
          }));
          const waiters = keys.slice(0, 6).map(async (key) => {
            const waits = limits.limit('waits', new Gcra('1/s'));
            await waits.take(key);
            return waits.wait(key, 30);
          });
          for (const { granted } of await Promise.all(waiters)) assert.equal(granted, 1);
          for (const node of cluster.each) assert.ok((await node.dbsize()) > 10, 'the keys are on all nodes');
          assert.equal(await cluster.moved(), before);
        } finally {
          await close();
        }
      });
    }

    test(`a call whose connection is lost is not sent again: ${name}`, async () => {
      const { client: redis, close } = await client.cluster(cluster.nodes);
      try {
        const limit = new Limits(redis, PATIENT).limit(`lost ${name}`, HOURLY);
        assert.equal((await limit.take('key')).remaining, 9);
        await losesConnection(limit, await ownerOf(limit.keyOf('key')));
      } finally {
        await close();
      }
    });
  }

  async function ownerOf(key) {
    for (const node of cluster.each) {
      if (await inspect(node, key).then(Boolean, () => false)) return node;
    }
    throw new Error('no node has the key');
  }
});

describe('a failover in the middle', { concurrency: 3 }, () => {
  for (const [name, client] of Object.entries(CLIENTS)) {
    if (!client.sentinel) continue;
    test(name, async () => {
      const set = await startSentinel();
      let close;
      try {
        const { client: redis, close: closes } = await client.sentinel(set);
        close = closes;
        const limits = new Limits(redis, { timeout: 60, connectTimeout: 60 });
        const limit = limits.limit('api', new Fixed('1000/h'));
        const [primary, replica] = set.clients;
        assert.equal((await limit.take('key')).remaining, 999);
        const once = limits.limit('once', HOURLY);
        await once.take('key');
        await losesConnection(once, primary);
        const full = limits.limit('full', HOURLY);
        await full.take('key', 10);
        const waiter = full.wait('key', '2h');
        await eventually(async () => (await info(primary, 'rl_waiting_clients')) === 1);
        // What was granted before is on the replica.
        await eventually(async () => (await used(replica, 'api:key')) === 1 && (await used(replica, 'full:key')) === 10);
        await set.failOver();
        // One after the other, each with an id: they go on when the replica has become the primary.
        for (let n = 0; n < 5; n++) {
          await eventually(() => limit.charge('key', 3, {}, (charge) => (charge.used = 2)).then(Boolean, (error) => {
            if (!(error instanceof Unavailable)) throw error;
          }));
        }
        await eventually(async () => (await used(replica, 'api:key')) === 11);
        assert.match(await replica.info('replication'), /role:master/);
        await eventually(async () => (await info(replica, 'rl_waiting_clients')) === 1);
        await replica.del('full:key');
        assert.equal((await waiter).granted, 1);
        assert.equal(await used(replica, 'full:key'), 1);
        await limits.close();
      } finally {
        await close?.();
        await set.stop();
      }
    });
  }
});

test('ioredis asks another Sentinel after one that is silent', async () => {
  const set = await startSentinel();
  const silent = createServer(() => {}).listen(0, '127.0.0.1');
  let close;
  try {
    await once(silent, 'listening');
    const sentinels = [{ host: '127.0.0.1', port: silent.address().port }, set.sentinel];
    const { client, close: closes } = await CLIENTS['ioredis 5'].sentinel(set, { sentinels, lazyConnect: true });
    close = closes;
    const limits = new Limits(client);
    const limit = limits.limit('api', HOURLY);
    await assert.rejects(limit.take('key'), Unavailable);
    await eventually(() => limit.take('key').then(Boolean, (error) => {
      if (!(error instanceof Unavailable)) throw error;
    }));
    await limits.close();
  } finally {
    await close?.();
    silent.close();
    await set.stop();
  }
});
