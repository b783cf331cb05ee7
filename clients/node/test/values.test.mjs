// Tests what decisions, policies and errors look like as text, and what wrong arguments are answered with.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Redis } from 'ioredis';
import { Bucket, Fixed, Gcra, InvalidCost, InvalidLimit, InvalidWait, Lease, Limits, NoModule, RateLimited, Slide, WrongType } from '../src/index.js';
import { startServer } from './server.mjs';

let server, redis, limits;
before(async () => {
  server = await startServer();
  redis = new Redis({ path: server.path });
  limits = new Limits(redis, { patience: 20 });
});
after(async () => {
  redis?.disconnect();
  await server?.stop();
});

test('decisions, policies and errors as JSON and as text', async () => {
  const limit = limits.limit('text', new Gcra('2/h', { burst: 1 }));
  const granted = await limit.take('key');
  const policy = { algorithm: 'GCRA', limit: 2, period: '1h', options: ['BURST', '1'] };
  assert.deepEqual(JSON.parse(JSON.stringify(granted.policy)), policy);
  const plain = JSON.parse(JSON.stringify(granted));
  assert.deepEqual([plain.name, plain.policy, plain.granted, plain.limit, plain.allowed], ['text', policy, 1, 1, true]);
  assert.equal(String(granted), 'text: 1 granted, 0 of 1 left');
  const denied = await limit.take('key');
  assert.match(String(denied), /^text: denied for 1[78]\d\d(\.\d+)? s, 0 of 1 left$/);
  assert.equal(JSON.parse(JSON.stringify(new RateLimited(denied))).decision.granted, 0);
  assert.match(String(await limit.take('key', 2)), /^text: denied for ever,/);
  const all = await limits.all([[limit, 'one'], [limit, 'two']]);
  assert.equal(String(all), 'text: 1 granted, 0 of 1 left; text: 1 granted, 0 of 1 left');
  assert.equal(JSON.parse(JSON.stringify(all)).decisions.length, 2);
  assert.equal(String(new Slide('10/m')), 'SLIDE 10/m');
});

test('an option that a policy does not have is an error', () => {
  for (const Class of [Fixed, Slide, Gcra, Bucket]) assert.throws(() => new Class('10/m', { brust: 3 }), InvalidLimit);
});

test('what is missing is said before anything is taken', async () => {
  const limit = limits.limit('missing', new Fixed('10/h'));
  const lease = limits.limit('held', new Lease(1, 30));
  await assert.rejects(limit.wait('key', undefined), InvalidWait);
  await assert.rejects(limit.reserve('key', undefined), InvalidWait);
  const body = () => {};
  await assert.rejects(lease.withLease('key', body), { name: 'TypeError', message: /then a function/ });
  await assert.rejects(limit.withCharge('key', 2, body), { name: 'TypeError', message: /then a function/ });
  await assert.rejects(limits.withAdmission([[limit, 'key']], body), { name: 'TypeError', message: /then a function/ });
  const named = (error) => error instanceof InvalidCost && error.message === 'a rule without a cost needs an estimate';
  await assert.rejects(limits.withAdmission([[limit, 'key']], {}, body), named);
  assert.deepEqual(await redis.keys('missing:*'), []);
  assert.deepEqual(await redis.keys('held:*'), []);
});

test('an error names the key of another type, and the module that is missing', async () => {
  await redis.lpush('list:key', 1);
  const wrong = (error) => error instanceof WrongType && error.message.includes('list:key');
  await assert.rejects(limits.limit('list', new Fixed('10/h')).take('key'), wrong);
  const bare = await startServer({ module: false });
  const client = new Redis({ path: bare.path });
  try {
    const none = (error) => error instanceof NoModule && error.message.includes('redis-rl');
    await assert.rejects(new Limits(client, { patience: 20 }).limit('api', new Fixed('10/h')).take('key'), none);
  } finally {
    client.disconnect();
    await bare.stop();
  }
});
