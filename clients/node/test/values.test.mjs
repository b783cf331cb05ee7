// Tests keys, denials and bookings as values, and what wrong arguments are answered with.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Redis } from 'ioredis';
import { addressKey, Bucket, Fixed, Gcra, InvalidCost, InvalidKey, InvalidLimit, InvalidWait, Lease, Limits, NoModule, RateLimited, Slide, WrongType } from '../dist/index.js';
import { startServer } from './server.mjs';

let server, redis, limits;
before(async () => {
  server = await startServer();
  redis = new Redis({ path: server.path });
  limits = new Limits(redis, { timeout: 20, connectTimeout: 20 });
});
after(async () => {
  redis?.disconnect();
  await server?.stop();
});

test('a denial as an error, and as a body of HTTP', async () => {
  const limit = limits.limit('text', new Gcra('2/h', { burst: 1 }));
  assert.equal((await limit.take('key')).throwIfDenied().granted, 1);
  const denied = await limit.take('key');
  const body = {
    type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
    status: 429,
    'violated-policies': ['text'],
  };
  assert.deepEqual(denied.problem(), body);
  assert.throws(() => denied.throwIfDenied(), (error) => {
    assert.deepEqual([error.problem(), error.headers(), error.decisions, error.status], [body, denied.headers(), [denied], 429]);
    return error instanceof RateLimited && error.retryAfter === denied.wait && /the limit text is reached; retry in 1[78]\d\d/.test(error.message);
  });
  const many = await limits.limit('never', new Fixed('0/h')).take('key');
  assert.throws(() => many.throwIfDenied(), /retry never/);
});

test('keys are text, bytes or integers', async () => {
  const limit = limits.limit('keys', new Fixed('10/h'));
  await limit.take(42);
  await limit.take(42n);
  await limit.take('42');
  assert.equal((await limit.take(Buffer.from('42'))).remaining, 6);
  for (const wrong of [1.5, NaN, 2 ** 53, true, {}, '', '\ud800']) await assert.rejects(limit.take(wrong), InvalidKey);
  const twice = limits.all([[limit, 'ü'], [limit, Buffer.from('ü')]]);
  await assert.rejects(twice, InvalidKey);
});

test('an error lists the units of time', () => {
  assert.throws(() => new Fixed('10/fortnight'), /us, ms, s, m, h, d, or sec, min, hour, day/);
  assert.throws(() => new Fixed('10/h', { zone: 'Europe/Berlin' }), /d, week or month/);
});

test('a text that is no address is a key as it is', () => {
  assert.equal(addressKey('fe80::1%eth0'), 'address:fe80::/64');
  for (const text of ['localhost', '10.0.0.1:80', 'a%b']) assert.equal(addressKey(text), `address:${text}`);
  assert.equal(addressKey(undefined), 'address:unknown');
});

for (const unit of ['d', 'week', 'month']) {
  test(`windows of the calendar follow each other, and none is as long as the period: ${unit}`, () => {
    for (const zone of ['Europe/Berlin', 'America/Havana', 'Australia/Lord_Howe', 'Pacific/Kiritimati', 'America/Santiago']) {
      const policy = new Fixed(`5/${unit}`, { zone });
      const ends = (ms) => Number(policy.words(ms).at(-1));
      let now = ends(Date.UTC(2026, 0, 1));
      while (now < Date.UTC(2028, 0, 1) / 1000) {
        const end = ends(now * 1000);
        assert.ok(end > now && end - now <= policy.period.ms / 1000, `${zone}: ${now} to ${end}`);
        assert.equal(policy.window(now * 1000), end - now, 'a window begins when the one before it ends');
        assert.equal(ends(end * 1000 - 1), end);
        now = end;
      }
    }
  });
}

test('bookings: until when to act', async () => {
  const limit = limits.limit('book', new Gcra('10/h', { burst: 1 }));
  assert.equal((await limit.reserve('key', '1h')).wait, 0);
  const booked = await limit.reserve('key', 3600);
  assert.ok(booked.allowed && booked.wait > 300 && booked.wait <= 360);
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
  await assert.rejects(lease.hold('key', body), { name: 'TypeError', message: /then a function/ });
  await assert.rejects(limit.charge('key', 2, body), { name: 'TypeError', message: /then a function/ });
  await assert.rejects(limits.admit([[limit, 'key']], body), { name: 'TypeError', message: /then a function/ });
  const named = (error) => error instanceof InvalidCost && error.message === 'a rule without a cost needs an estimate';
  await assert.rejects(limits.admit([[limit, 'key']], {}, body), named);
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
    await assert.rejects(new Limits(client, { timeout: 20, connectTimeout: 20 }).limit('api', new Fixed('10/h')).take('key'), none);
  } finally {
    client.disconnect();
    await bare.stop();
  }
});
