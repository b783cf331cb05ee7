// Tests that a wait of more than a minute keeps its place in line, with the default settings of the client. All
// clients wait at the same time.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Fixed, Limits } from '../dist/index.js';
import { CLIENTS } from './clients.mjs';
import { eventually, info, inspect, onServer, used } from './server.mjs';

/** A denial lasts longer than a minute, and than the default time-outs of clients. */
const POLICY = new Fixed('2/64s');
const LEAST_S = 60;
/** Longer than a command takes on a busy machine, and much shorter than the wait. */
const PATIENT = { timeout: 20, connectTimeout: 20 };

let server, admin;
onServer((...started) => ([server, admin] = started));

const now = async () => Number((await admin.time())[0]);

describe('a wait of more than a minute', { concurrency: Object.keys(CLIENTS).length }, () => {
  for (const [name, { single }] of Object.entries(CLIENTS)) {
    test(name, async () => {
      const clients = [await single(server.path), await single(server.path)];
      try {
        const [first, second] = clients.map(({ client }) => new Limits(client, PATIENT).limit(name, POLICY));
        const key = first.keyOf('key');
        const began = await now();
        assert.equal((await admin.call('RL.FIXED', key, ...POLICY.words(), 'COST', 2))[0], 2);
        const inLine = async () => (await inspect(admin, key)).waiting;
        const one = first.wait('key', 120);
        await eventually(async () => (await inLine()) === 1);
        const other = second.wait('key', 120);
        await eventually(async () => (await inLine()) === 2);
        const granted = await Promise.all([one, other]);
        assert.ok((await now()) - began >= LEAST_S);
        // The first in line got the first unit of the new window.
        assert.deepEqual(granted.map(({ granted, remaining }) => [granted, remaining]), [[1, 1], [1, 0]]);
        assert.equal(await used(admin, key), 2);
      } finally {
        for (const { close } of clients) await close();
      }
    });
  }
});

test('nobody left the line before', async () => {
  assert.equal(await info(admin, 'rl_waits_abandoned'), 0);
  assert.equal(await info(admin, 'rl_waits'), 2 * Object.keys(CLIENTS).length);
});
