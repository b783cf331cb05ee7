import assert from 'node:assert/strict';
import test from 'node:test';
import { createClient } from 'redis';
import { rlServer } from 'redis-rl-server/test';
import { mayTry } from './login.js';

const server = rlServer();

test('the sixth attempt is refused, and each name has its own limit', async () => {
  const client = await createClient({ url: server.url }).connect();
  const tries = [];
  for (let n = 0; n < 6; n++) tries.push(await mayTry(client, 'ada'));
  assert.deepEqual(tries, [true, true, true, true, true, false]);
  assert.ok(await mayTry(client, 'bob'));
  client.destroy();
});
