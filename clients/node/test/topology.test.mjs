// Tests TLS, pools, key prefixes of clients, and a cluster that moves a slot and fails over in the middle of calls.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Cluster, Redis } from 'ioredis';
import { Fixed, Gcra, Lease, Limits, Unavailable } from '../dist/index.js';
import { CLIENTS, EACH } from './clients.mjs';
import { certificate, eventually, hasTls, info, startCluster, startServer, startTlsServer, used } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
const HOURLY = new Fixed('10/h');

/** Calls of each kind: on the shared connection, and on one of its own. */
async function callsOfEachKind(client) {
  const limits = new Limits(client, { prefix: `${Math.random()}:`, ...PATIENT });
  const keys = Array.from({ length: 8 }, (_, n) => `user-${n}`);
  const limit = limits.limit('api', HOURLY);
  await Promise.all(keys.map(async (key) => {
    assert.equal((await limit.take(key, 4)).remaining, 6);
    await limit.charge(key, 3, {}, (charge) => (charge.used = 1));
    assert.equal((await limit.peek(key)).remaining, 5);
    const soon = limits.limit('soon', new Gcra('1/s'));
    await soon.take(key);
    assert.equal((await soon.wait(key, 30)).granted, 1);
    const tagged = [limits.limit(`{${key}}-jobs`, new Lease(1, 30)), limits.limit(`{${key}}-day`, HOURLY)];
    assert.equal(await limits.admit(tagged.map((one) => [one, 'x']), { estimate: 2 }, () => 'done'), 'done');
  }));
  await limits.close();
}

describe('with TLS', { skip: hasTls() ? false : 'this server was built without TLS' }, () => {
  test('one server', async (t) => {
    const made = await certificate();
    let server;
    try {
      server = await startTlsServer(made);
      for (const [name, library] of Object.entries(CLIENTS)) {
        await t.test(name, async () => {
          const { client, close } = await library.tls(server);
          try {
            await callsOfEachKind(client);
          } finally {
            await close();
          }
        });
      }
    } finally {
      await server?.stop();
      await made.stop();
    }
  });

  test('a cluster', async (t) => {
    const made = await certificate();
    let cluster;
    try {
      cluster = await startCluster({ tls: made });
      for (const [name, library] of Object.entries(CLIENTS)) {
        await t.test(name, async () => {
          const { client, close } = await library.tlsCluster(cluster.nodes, made.ca);
          try {
            await callsOfEachKind(client);
          } finally {
            await close();
          }
        });
      }
    } finally {
      await cluster?.stop();
      await made.stop();
    }
  });
});

test('a pool of node-redis', async (t) => {
  const server = await startServer();
  try {
    for (const [name, { pool }] of Object.entries(CLIENTS)) {
      if (pool) await t.test(name, async () => {
        const { client, close } = await pool(server.path);
        try {
          await callsOfEachKind(client);
        } finally {
          await close();
        }
      });
    }
  } finally {
    await server.stop();
  }
});

test('keyPrefix of ioredis comes before the prefix of the limits', async () => {
  const server = await startServer();
  const cluster = await startCluster();
  const admin = new Redis({ path: server.path });
  const one = new Redis({ path: server.path, keyPrefix: 'app:' });
  const many = new Cluster(cluster.nodes, { keyPrefix: 'app:' });
  try {
    const limits = [one, many].map((client) => new Limits(client, { prefix: 'shop:', ...PATIENT }));
    for (const each of limits) {
      const limit = each.limit('api', HOURLY);
      assert.equal((await limit.take('key')).remaining, 9);
      assert.equal(limit.keyOf('key'), 'app:shop:api:key');
    }
    assert.deepEqual(await admin.keys('*'), ['app:shop:api:key']);
    assert.equal(await used(await cluster.nodeOf('app:shop:api:key'), 'app:shop:api:key'), 1);
    for (const each of limits) await each.close();
  } finally {
    for (const client of [admin, one, many]) client.disconnect();
    await server.stop();
    await cluster.stop();
  }
});

for (const [name, { cluster: connect }] of EACH) {
  test(`a cluster with replicas: ${name}`, async (t) => {
    const cluster = await startCluster({ replicas: true });
    const closers = [];
    const connected = async (options) => {
      const { client, close } = await connect(cluster.nodes, options);
      closers.push(close);
      return client;
    };
    try {
      await t.test('a wait goes on at the node that its slot has moved to', async () => {
        const client = await connected({});
        const limit = new Limits(client, { ...PATIENT }).limit('moves', HOURLY);
        const key = limit.keyOf('key');
        await limit.take('key', 10);
        const waiter = limit.wait('key', '2h');
        const from = await cluster.nodeOf(key);
        const to = cluster.each[(cluster.each.indexOf(from) + 1) % cluster.each.length];
        await eventually(async () => (await info(from, 'rl_waiting_clients')) === 1);
        const slot = await from.cluster('KEYSLOT', key);
        const [idFrom, idTo] = await Promise.all([from, to].map((node) => node.cluster('MYID')));
        await to.cluster('SETSLOT', slot, 'IMPORTING', idFrom);
        await from.cluster('SETSLOT', slot, 'MIGRATING', idTo);
        await from.migrate(to.options.host, to.options.port, key, 0, 5000);
        for (const node of [to, from]) await node.cluster('SETSLOT', slot, 'NODE', idTo);
        await eventually(async () => (await info(to, 'rl_waiting_clients')) === 1);
        await to.del(key);
        assert.equal((await waiter).granted, 1);
        assert.equal(await used(to, key), 1);
      });

      await t.test('a call follows its key to a node that does not own the slot yet', async () => {
        const client = await connected({});
        const limits = new Limits(client, PATIENT);
        const limit = limits.limit('asks', HOURLY);
        const key = limit.keyOf('key');
        const from = await cluster.nodeOf(key);
        const to = cluster.each[(cluster.each.indexOf(from) + 1) % cluster.each.length];
        const slot = await from.cluster('KEYSLOT', key);
        const [idFrom, idTo] = await Promise.all([from, to].map((node) => node.cluster('MYID')));
        await to.cluster('SETSLOT', slot, 'IMPORTING', idFrom);
        await from.cluster('SETSLOT', slot, 'MIGRATING', idTo);
        for (const remaining of [9, 8]) assert.equal((await limit.take('key')).remaining, remaining);
        for (const node of [to, from]) await node.cluster('SETSLOT', slot, 'NODE', idTo);
        assert.equal(await used(to, key), 2);
        assert.equal((await limit.take('key')).remaining, 7);
        await limits.close();
      });

      await t.test('a failover in the middle of calls with ids: each is charged once', async () => {
        const client = await connected({});
        const limits = new Limits(client, { timeout: 60, connectTimeout: 60 });
        const limit = limits.limit('{key}', new Fixed('100000/h'));
        const full = limits.limit('{key}-full', HOURLY);
        const primary = await cluster.nodeOf(limit.keyOf('a'));
        await full.take('a', 10);
        await limit.take('a');
        const waiter = full.wait('a', '2h');
        await eventually(async () => (await info(primary, 'rl_waiting_clients')) === 1);
        await eventually(async () => (await primary.wait(1, 1000)) === 1);
        let [count, failed, stop] = [0, 0, false];
        const calls = Array.from({ length: 4 }, async (_, lane) => {
          for (let n = 0; !stop || n < 3; n++) {
            try {
              assert.equal((await limit.take('a', 1, { id: `call ${lane} ${n}` })).granted, 1);
              count++;
            } catch (error) {
              // A call that began while no server was there.
              if (!(error instanceof Unavailable) || error.sent) throw error;
              failed++;
            }
            await new Promise((done) => setTimeout(done, 20));
          }
        });
        await eventually(() => count >= 8);
        const promoted = await cluster.failOver(limit.keyOf('a'));
        const before = count;
        await eventually(() => count >= before + 8);
        stop = true;
        await Promise.all(calls);
        // The last charges of the old primary may be lost with it. None is counted twice.
        const charged = await used(promoted, limit.keyOf('a'));
        assert.ok(charged <= count + 1 && charged >= count - before - 4, `${charged} charged, ${count} calls, ${failed} failed`);
        await eventually(async () => (await info(promoted, 'rl_waiting_clients')) === 1);
        await promoted.del(full.keyOf('a'));
        assert.equal((await waiter).granted, 1);
        assert.equal(await used(promoted, full.keyOf('a')), 1);
        await limits.close();
      });
    } finally {
      for (const close of closers) await close();
      await cluster.stop();
    }
  });
}
