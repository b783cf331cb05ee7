// Tests what docs/clients.md says about BLOCK and the time-outs of clients.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { Redis } from 'ioredis';
import { eventually, onServer } from '../../../clients/node/test/server.mjs';

let server;
let admin;

onServer((started, connection) => ([server, admin] = [started, connection]));

// Long enough for any command that does not wait.
const HURRY_MS = 1000;

/** Takes all units of a key for an hour. Returns a call that waits for one. */
async function exhaust(key) {
  const call = ['RL.FIXED', key, '10', '1h'];
  assert.equal((await admin.call(...call, 'COST', 10))[0], 10);
  return [...call, 'BLOCK', '2h'];
}

/** Deletes the key, so that the first waiter is granted. */
const letIn = (key) => admin.del(key);

/** The ids of the waiting clients with this name. */
async function inLine(name) {
  const clients = (await admin.client('LIST')).split('\n');
  const waiting = clients.filter((client) => client.includes(` name=${name} `) && / flags=\w*b/.test(client));
  return waiting.map((client) => client.match(/^id=(\d+)/)[1]);
}

const has = (name, waiting) => eventually(async () => (await inLine(name)).length === waiting);

/** Units in use: the units charged since the key was deleted. */
async function used(key) {
  const facts = await admin.call('RL.INSPECT', key);
  return facts ? facts[facts.indexOf('used') + 1] : 0;
}

/** Runs `use` with a client of ioredis with these options. */
async function ioredis(connectionName, options, use) {
  const redis = new Redis({ path: server.path, connectionName, ...options });
  redis.on('error', () => {});
  try {
    await eventually(() => redis.status === 'ready');
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

/** Lets a client wait for longer than a client with a short time-out would. */
async function waits(name, send) {
  const reply = send(await exhaust(name));
  await has(name, 1);
  await sleep(1.5 * HURRY_MS);
  await letIn(name);
  assert.equal((await reply)[0], 1);
  assert.equal(await used(name), 1, 'charged once');
}

describe('clients that wait', { concurrency: true }, () => {
  for (const [name, options] of [
    ['ioredis', {}],
    ['ioredis-35-s', { commandTimeout: 35_000 }],
  ]) {
    test(`${name} waits, and is charged once`, () =>
      ioredis(name, options, (redis) => waits(name, (call) => redis.call(...call))));
  }

  test('after a commandTimeout of ioredis the waiter stays and is charged, and no program reads its reply', () =>
    ioredis('timeout', { commandTimeout: HURRY_MS }, async (redis) => {
      await assert.rejects(redis.call(...(await exhaust('timeout'))), /Command timed out/);
      await has('timeout', 1);
      await assert.rejects(redis.ping(), /Command timed out/, 'what comes behind it is held up');
      await letIn('timeout');
      await eventually(async () => (await used('timeout')) === 1);
      assert.equal(await redis.ping(), 'PONG');
    }));

  for (const [way, end] of [
    ['close', (redis) => redis.disconnect()],
    ['unblock', (_, id) => admin.client('UNBLOCK', id)],
  ]) {
    test(`a waiter whose connection is closed or unblocked is charged nothing: ${way}`, () =>
      ioredis(way, { commandTimeout: HURRY_MS }, async (redis) => {
        await assert.rejects(redis.call(...(await exhaust(way))), /Command timed out/);
        const [id] = await inLine(way);
        await end(redis, id);
        await has(way, 0);
        await letIn(way);
        assert.equal(await used(way), 0);
      }));
  }

  test('after a socketTimeout ioredis sends the call again, to the end of the queue', () =>
    ioredis('socket', { socketTimeout: HURRY_MS }, async (redis) => {
      const reply = redis.call(...(await exhaust('socket')));
      await has('socket', 1);
      const [first] = await inLine('socket');
      // It waits on another connection, as a new caller.
      await eventually(async () => ![undefined, first].includes((await inLine('socket'))[0]));
      await letIn('socket');
      assert.equal((await reply)[0], 1);
      assert.equal(await used('socket'), 1);
    }));

  for (const [name, options, end] of [
    ['lost', {}, undefined],
    ['lost-timeout', { commandTimeout: 3 * HURRY_MS }, 'Command timed out'],
    ['lost-at-once', { maxRetriesPerRequest: 0 }, /^Reached the max retries/],
  ]) {
    test(`without autoResendUnfulfilledCommands, a call of ioredis whose connection breaks: ${name}`, () =>
      ioredis(name, { autoResendUnfulfilledCommands: false, ...options }, async (redis) => {
        let settled;
        const call = redis.call(...(await exhaust(name))).then(([granted]) => granted, ({ message }) => message);
        call.then((result) => (settled = result));
        await has(name, 1);
        await admin.client('KILL', 'ID', (await inLine(name))[0]);
        await has(name, 0);
        await eventually(async () => redis.status === 'ready' && (await redis.ping().catch(() => {})) === 'PONG');
        if (!end) await sleep(3 * HURRY_MS);
        else await eventually(() => settled);
        if (end) assert.match(settled, new RegExp(end));
        else assert.equal(settled, undefined, 'the client is connected again, and the call is still not settled');
        assert.equal(await used(name), 10, 'nobody called again');
      }));
  }

  for (const [name, options] of [
    ['node-redis', {}],
    ['node-redis-1-s', { commandOptions: { timeout: HURRY_MS } }],
    ['node-redis-35-s', { socket: { socketTimeout: 35_000 } }],
  ]) {
    test(`${name} waits, and is charged once: its time-out covers only the sending of the command`, () =>
      nodeRedis(name, options, (client) => waits(name, (call) => client.sendCommand(call))));
  }

  test('after a socketTimeout of node-redis the waiter leaves the queue, and the client is closed', () =>
    nodeRedis('idle', { socket: { socketTimeout: HURRY_MS } }, async (client) => {
      await assert.rejects(client.sendCommand(await exhaust('idle')), /Socket timeout/);
      await has('idle', 0);
      await letIn('idle');
      assert.equal(await used('idle'), 0);
      assert.ok(!client.isOpen);
    }));

  test('on a shared connection a waiter delays other commands', () =>
    nodeRedis('shared', {}, async (client) => {
      const answers = [];
      const answer = (name, reply) => reply.then(() => answers.push(name));
      const held = [answer('waiter', client.sendCommand(await exhaust('shared'))), answer('ping', client.ping())];
      await has('shared', 1);
      await letIn('shared');
      await Promise.all(held);
      assert.deepEqual(answers, ['waiter', 'ping']);
      const own = await client.duplicate().connect();
      try {
        const waiter = answer('waiter', own.sendCommand(await exhaust('apart')));
        await has('shared', 1);
        await answer('ping', client.ping());
        await letIn('apart');
        await waiter;
        assert.deepEqual(answers.slice(2), ['ping', 'waiter']);
      } finally {
        own.destroy();
      }
    }));
});
