// Tests the ends of windows against known moments, and on a server that callers share a window.
import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';
import { Redis } from 'ioredis';
import { Down, Limits } from 'redis-rl';
import { inspect, onServer, startProxy } from '../../../clients/node/test/server.mjs';
import { endOf, PERIODS, Quota } from '../quota.mjs';

const DAY_MS = 86_400_000;
const BERLIN = 'Europe/Berlin';

let server;
let redis;

onServer((started, connection) => ([server, redis] = [started, connection]));
beforeEach(() => redis.flushall());

/** A quota of ten units, and a patience that is long enough on a busy machine. */
const quotaOf = (client, unit) => new Quota(new Limits(client, { patience: 20 }), unit, 10, BERLIN);
const utc = (text) => Date.parse(`${text}Z`);

for (const [unit, zone, now, end] of [
  ['day', BERLIN, '2026-11-21T22:59:59', '2026-11-21T23:00:00'],
  ['day', BERLIN, '2026-11-21T23:00:00', '2026-11-22T23:00:00'],
  // The clocks go forward on 29 March and back on 25 October: these days have 23 and 25 hours.
  ['day', BERLIN, '2026-03-28T23:00:00', '2026-03-29T22:00:00'],
  ['day', BERLIN, '2026-10-24T22:00:00', '2026-10-25T23:00:00'],
  ['day', BERLIN, '2026-10-25T01:30:00', '2026-10-25T23:00:00'],
  ['week', BERLIN, '2026-03-22T23:00:00', '2026-03-29T22:00:00'],
  ['week', BERLIN, '2026-10-18T22:00:00', '2026-10-25T23:00:00'],
  ['month', BERLIN, '2028-02-28T23:00:00', '2028-02-29T23:00:00'],
  ['month', BERLIN, '2026-03-31T21:59:59', '2026-03-31T22:00:00'],
  ['month', BERLIN, '2026-09-30T22:00:00', '2026-10-31T23:00:00'],
  ['month', BERLIN, '2026-12-31T23:00:00', '2027-01-31T23:00:00'],
  // In Havana the clocks go from 00:00 to 01:00 on the second Sunday of March, since 2013.
  ['day', 'America/Havana', '2026-03-07T12:00:00', '2026-03-08T05:00:00'],
  ['day', 'America/Havana', '2026-03-08T12:00:00', '2026-03-09T04:00:00'],
  ['day', 'Pacific/Kiritimati', '2026-05-01T09:59:59', '2026-05-01T10:00:00'],
]) {
  test(`the ${unit} of ${zone} that holds ${now} ends at ${end}`, () => {
    assert.equal(endOf(unit, zone, utc(now)), utc(end) / 1000);
  });
}

for (const unit of ['day', 'week', 'month']) {
  test(`no ${unit} is longer than the period less an hour`, () => {
    for (const zone of [BERLIN, 'America/New_York', 'Australia/Lord_Howe']) {
      let now = endOf(unit, zone, utc('2026-01-01T00:00:00'));
      while (now < utc('2028-01-01T00:00:00') / 1000) {
        const end = endOf(unit, zone, now * 1000);
        assert.ok(end > now && end - now <= (parseInt(PERIODS[unit]) - 1) * 3600, `${zone}: ${now} to ${end}`);
        now = end;
      }
    }
  });

  test(`all callers of a ${unit} share a window`, async () => {
    const quota = quotaOf(redis, unit);
    const key = `quota:${unit}:ada`;
    const [seconds] = await redis.time();
    const now = seconds * 1000;
    const first = await quota.take('ada', 4, now);
    assert.deepEqual([first.granted, first.remaining], [4, 6]);
    const end = (await inspect(redis, key)).window_end_ms;
    assert.equal(end, endOf(unit, BERLIN, now) * 1000);
    // Another caller's clock is fast or slow.
    assert.equal((await quota.take('ada', 1, now + DAY_MS)).remaining, 5);
    assert.equal((await quota.take('ada', 1, now - 32 * DAY_MS)).remaining, 4);
    assert.equal((await inspect(redis, key)).window_end_ms, end);
    assert.equal((await quota.take('ada', 5)).granted, 0);
  });
}

test('a call whose reply is lost is not repeated', async () => {
  const proxy = await startProxy(server);
  const lossy = new Redis({ path: proxy.path });
  lossy.on('error', () => {});
  try {
    proxy.lose('reply', 'RL.FIXED');
    const quota = quotaOf(lossy, 'month');
    await assert.rejects(quota.take('ada', 3), Down);
    assert.deepEqual(proxy.lost, [['reply', 'RL.FIXED']]);
    assert.equal((await inspect(redis, 'quota:month:ada')).used, 3);
    assert.equal((await quota.take('ada', 3)).remaining, 4);
  } finally {
    lossy.disconnect();
    await proxy.stop();
  }
});

test('an unknown unit is refused', () => {
  assert.throws(() => endOf('year', BERLIN), RangeError);
});
