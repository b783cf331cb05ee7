// BLOCK and the time-outs of clients: docs/clients.md has what is tried here.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from '@redis/client';
import { Redis } from 'ioredis';
import { waitInLine } from '../wait.mjs';
import { eventually, startServer } from './server.mjs';

let server;
let admin;

before(async () => {
  server = await startServer();
  admin = new Redis({ path: server.path });
});
after(async () => {
  admin?.disconnect();
  await server?.stop();
});

const LIMIT = 10;
// Longer than a client waits that is in a hurry, and that is long enough for any other command.
const PERIOD = 3;
const HURRY_MS = 1000;

/** Takes all units of a key: one is free after a period. Returns a call that waits for it. */
async function exhaust(key, period = PERIOD) {
  const call = ['RL.FIXED', key, String(LIMIT), String(period)];
  assert.equal((await admin.call(...call, 'COST', LIMIT))[0], LIMIT);
  return [...call, 'BLOCK', '30'];
}

/** How many clients of this name the server has in line. */
async function inLine(name) {
  const clients = (await admin.client('LIST')).split('\n');
  return clients.filter((client) => client.includes(` name=${name} `) && / flags=\w*b/.test(client)).length;
}

/** Units in use: all of those of the first window, and then what was charged by those who waited. */
async function used(key) {
  const facts = await admin.call('RL.INSPECT', key);
  return facts ? facts[facts.indexOf('used') + 1] : 0;
}

const next = (key) => eventually(async () => (await used(key)) < LIMIT);

/** A client of ioredis with these options while `use` runs. */
async function ioredis(connectionName, options, use) {
  const redis = new Redis({ path: server.path, connectionName, ...options });
  redis.on('error', () => {});
  try {
    await use(redis);
  } finally {
    redis.disconnect();
  }
}

async function nodeRedis(name, options, use) {
  const client = createClient({ ...options, name, socket: { path: server.path, ...options.socket } });
  client.on('error', () => {});
  await client.connect();
  try {
    await use(client);
  } finally {
    if (client.isOpen) client.destroy();
  }
}

describe('clients that wait', { concurrency: true }, () => {
  for (const [name, options] of [
    ['ioredis', {}],
    ['ioredis-35-s', { commandTimeout: 35_000 }],
  ]) {
    test(`${name} waits, and is charged once`, () =>
      ioredis(name, options, async (redis) => {
        const [command, ...args] = await exhaust(name);
        assert.equal((await redis.call(command, ...args))[0], 1);
        assert.equal(await used(name), 1);
      }));
  }

  test('a commandTimeout of ioredis leaves a waiter that is charged, and nobody reads its reply', () =>
    ioredis('timeout', { commandTimeout: HURRY_MS }, async (redis) => {
      const [command, ...args] = await exhaust('timeout');
      await assert.rejects(redis.call(command, ...args), /Command timed out/);
      assert.equal(await inLine('timeout'), 1);
      await assert.rejects(redis.ping(), /Command timed out/, 'what comes behind it is held up');
      await next('timeout');
      await eventually(async () => (await used('timeout')) === 1);
      assert.equal(await inLine('timeout'), 0);
      assert.equal(await redis.ping(), 'PONG');
    }));

  for (const [way, end] of [
    ['close', (redis) => redis.disconnect()],
    ['unblock', (_, id) => admin.client('UNBLOCK', id)],
  ]) {
    test(`who closes the connection, or unblocks the client, is charged nothing: ${way}`, () =>
      ioredis(way, { commandTimeout: HURRY_MS }, async (redis) => {
        const id = await redis.client('ID');
        const [command, ...args] = await exhaust(way);
        await assert.rejects(redis.call(command, ...args), /Command timed out/);
        assert.equal(await inLine(way), 1);
        end(redis, id);
        await eventually(async () => (await inLine(way)) === 0);
        await next(way);
        assert.equal(await used(way), 0);
      }));
  }

  test('a socketTimeout of ioredis sends the call again, to the end of the line', () =>
    ioredis('socket', { socketTimeout: HURRY_MS }, async (redis) => {
      const [command, ...args] = await exhaust('socket');
      const reply = redis.call(command, ...args);
      await eventually(async () => (await inLine('socket')) === 1);
      const id = async () => (await admin.client('LIST')).match(/id=(\d+) .* name=socket .* flags=\w*b/)?.[1];
      const first = await id();
      await eventually(async () => ![undefined, first].includes(await id()));
      assert.equal((await reply)[0], 1);
      assert.equal(await used('socket'), 1);
    }));

  for (const [name, options] of [
    ['node-redis', {}],
    ['node-redis-1-s', { commandOptions: { timeout: HURRY_MS } }],
    ['node-redis-35-s', { socket: { socketTimeout: 35_000 } }],
  ]) {
    test(`${name} waits, and is charged once: its time-out ends when the command is sent`, () =>
      nodeRedis(name, options, async (client) => {
        assert.equal((await client.sendCommand(await exhaust(name)))[0], 1);
        assert.equal(await used(name), 1);
      }));
  }

  test('a socketTimeout of node-redis leaves the line, and the client is closed', () =>
    nodeRedis('idle', { socket: { socketTimeout: HURRY_MS } }, async (client) => {
      await assert.rejects(client.sendCommand(await exhaust('idle')), /Socket timeout/);
      await eventually(async () => (await inLine('idle')) === 0);
      await next('idle');
      assert.equal(await used('idle'), 0);
      assert.ok(!client.isOpen);
    }));

  test('on a connection that others use, a waiter holds them up', () =>
    nodeRedis('shared', {}, async (client) => {
      const answers = [];
      const waiter = client.sendCommand(await exhaust('shared')).then(() => answers.push('waiter'));
      await Promise.all([waiter, client.ping().then(() => answers.push('ping'))]);
      assert.deepEqual(answers, ['waiter', 'ping']);
      const pool = client.duplicate();
      const own = await pool.connect();
      try {
        const waiter = own.sendCommand(await exhaust('shared-not')).then(() => answers.push('waiter'));
        await eventually(async () => (await inLine('shared')) === 1);
        await Promise.all([waiter, client.ping().then(() => answers.push('ping'))]);
        assert.deepEqual(answers.slice(2), ['ping', 'waiter']);
      } finally {
        own.destroy();
      }
    }));
});

describe('wait.mjs', { concurrency: true }, () => {
  // Too short for a wait.
  const hurried = { commandTimeout: HURRY_MS, autoResendUnfulfilledCommands: false };
  const limit = { algorithm: 'FIXED', limit: LIMIT, period: PERIOD };

  test('waits on a connection of its own, and is charged once', () =>
    ioredis('own', hurried, async (redis) => {
      const free = await waitInLine(redis, limit, { key: 'own', cost: LIMIT, wait: 30 });
      assert.deepEqual([free.granted, free.limit, free.remaining, free.waitMs], [LIMIT, LIMIT, 0, 0]);
      const waiter = waitInLine(redis, limit, { key: 'own', wait: 30 });
      await eventually(async () => (await inLine('own')) === 1);
      assert.equal(await redis.ping(), 'PONG', 'the shared connection answers meanwhile');
      assert.equal(await inLine('own'), 1);
      assert.equal((await waiter).granted, 1);
      assert.equal(await used('own'), 1);
      await eventually(async () => (await admin.client('LIST')).split(' name=own ').length === 2);
    }));

  test('is denied when the time is over, or at once when it would be', () =>
    ioredis('denied', hurried, async (redis) => {
      const hour = { ...limit, period: 3600 };
      await waitInLine(redis, hour, { key: 'denied', cost: LIMIT, wait: 30 });
      const asked = performance.now();
      const denied = await waitInLine(redis, hour, { key: 'denied', wait: 30 });
      assert.equal(denied.granted, 0);
      assert.ok(denied.waitMs > 3_500_000);
      assert.equal((await waitInLine(redis, hour, { key: 'denied', cost: LIMIT + 1, wait: 30 })).waitMs, -1);
      assert.ok(performance.now() - asked < 20_000);
    }));

  test('who aborts leaves the line, and the next moves up', () =>
    ioredis('abort', hurried, async (redis) => {
      await waitInLine(redis, limit, { key: 'abort', cost: LIMIT, wait: 30 });
      const leaver = new AbortController();
      const left = assert.rejects(waitInLine(redis, limit, { key: 'abort', cost: LIMIT, wait: 30, signal: leaver.signal }), {
        message: 'no longer needed',
      });
      await eventually(async () => (await inLine('abort')) === 1);
      const waiter = waitInLine(redis, limit, { key: 'abort', wait: 30 });
      await eventually(async () => (await inLine('abort')) === 2);
      leaver.abort(new Error('no longer needed'));
      await left;
      await eventually(async () => (await inLine('abort')) === 1);
      assert.equal((await waiter).granted, 1);
      assert.equal(await used('abort'), 1);
    }));

  test('a wait that a failover ends is asked for again', () =>
    ioredis('failover', hurried, async (redis) => {
      await waitInLine(redis, limit, { key: 'failover', cost: LIMIT, wait: 30 });
      const waiter = waitInLine(redis, limit, { key: 'failover', wait: 30 });
      await eventually(async () => (await inLine('failover')) === 1);
      const [, id] = (await admin.client('LIST')).match(/id=(\d+) .* name=failover .* flags=\w*b/);
      // The same answer as on a failover.
      await admin.client('UNBLOCK', id, 'ERROR');
      assert.equal((await waiter).granted, 1);
      assert.equal(await used('failover'), 1);
    }));

  test('a server that goes away ends the wait with an error', async () => {
    const other = await startServer();
    const redis = new Redis({ path: other.path, ...hurried });
    redis.on('error', () => {});
    try {
      await waitInLine(redis, limit, { key: 'key', cost: LIMIT, wait: 30 });
      const lost = assert.rejects(waitInLine(redis, { ...limit, period: 3600 }, { key: 'key', wait: 7200 }), /closed|ended/i);
      await sleep(100);
      await other.kill();
      await lost;
    } finally {
      redis.disconnect();
      await other.stop();
    }
  });

  test('a wrong argument is an error', () =>
    ioredis('wrong', hurried, async (redis) => {
      await waitInLine(redis, limit, { key: 'wrong', cost: LIMIT, wait: 30 });
      for (const wait of [undefined, 0, NaN, 86_401]) {
        await assert.rejects(waitInLine(redis, limit, { key: 'wrong', wait }), RangeError);
      }
      await assert.rejects(waitInLine(redis, { ...limit, period: 'soon' }, { key: 'wrong', wait: 1 }), /period/);
    }));
});
