import { randomUUID } from 'node:crypto';
import { Command } from 'ioredis';

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/**
 * The longest that each window can be, and one hour more, because a clock may be fast. A day has up to 25 hours. In zones where
 * the clocks go back in October, October has 31 days and one hour.
 */
export const PERIODS = { day: '26h', week: '170h', month: '746h' };

const formats = new Map();

/** The day that the calendar of a time zone shows at a moment: the number of days since 1970. */
function dayIn(zone, ms) {
  if (!formats.has(zone)) {
    const fields = { year: 'numeric', month: 'numeric', day: 'numeric' };
    formats.set(zone, new Intl.DateTimeFormat('en-US', { ...fields, timeZone: zone, calendar: 'gregory' }));
  }
  const parts = Object.fromEntries(formats.get(zone).formatToParts(ms).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(parts.year, parts.month - 1, parts.day) / DAY_MS;
}

const DAY_MS = 86_400_000;

/** The number of the first day of the next day, week or month. */
function nextDay(unit, today) {
  const date = new Date(today * DAY_MS);
  switch (unit) {
    case 'day':
      return today + 1;
    case 'week':
      return today + 7 - ((date.getUTCDay() + 6) % 7);
    case 'month':
      return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1) / DAY_MS;
    default:
      throw new RangeError(`unit is day, week or month, not ${unit}`);
  }
}

/** When the day, week or month that holds `ms` ends in a time zone, in Unix seconds. */
export function endOf(unit, zone, ms = Date.now()) {
  const first = nextDay(unit, dayIn(zone, ms));
  // Intl shows the date at a moment, but not the moment at which a date begins: that is found by bisection. No zone is more than
  // 14 hours from UTC.
  let [before, after] = [first * 86_400 - 15 * 3_600, first * 86_400 + 15 * 3_600];
  while (after - before > 1) {
    const middle = Math.floor((before + after) / 2);
    if (dayIn(zone, middle * 1000) < first) before = middle;
    else after = middle;
  }
  return after;
}

/**
 * Takes units of a limit per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning,
 * or on the first of the month. All units or none.
 *
 *     const quota = { unit: 'month', limit: 10_000, zone: 'Europe/Berlin' };
 *     const { granted, remaining, resetMs } = await takeOfCalendar(redis, 'quota:42', quota);
 *
 * `redis` is a Redis or a Cluster of ioredis. The calendar is that of Intl; the server only learns when the window ends. Each
 * call states the end of the day that the caller's clock shows. A clock that is wrong by seconds does no harm. Do not pass `ms`,
 * except in tests.
 *
 * ioredis repeats a command whose reply is lost. Each call has a new id, so the server charges a repeated command once. The key
 * remembers the ids until its window ends, at most 65536 of them, in up to 210 bytes each: 2 MB for 10 000 calls.
 */
export async function takeOfCalendar(redis, key, { unit, limit, zone }, units = 1, ms = Date.now()) {
  const end = endOf(unit, zone, ms);
  const args = [key, limit, PERIODS[unit], 'UNTIL', end, 'COST', units, 'ID', randomUUID()];
  const [granted, , remaining, waitMs, resetMs] = await redis.sendCommand(new Limiter('RL.FIXED', args));
  return { granted, limit, remaining, waitMs, resetMs };
}
