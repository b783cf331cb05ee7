// Quotas per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning, or on the first of the
// month, also when the clocks change.
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { Fixed, Limits } from 'redis-rl';

/**
 * The longest that each window can be, and one hour more, because a clock may be fast. A day has up to 25 hours. In zones where
 * the clocks go back in October, October has 31 days and one hour.
 */
export const PERIODS = { day: '26h', week: '170h', month: '746h' };

const DAY_MS = 86_400_000;
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

/** The number of the first day of the next day, week or month. */
function nextDay(unit, today) {
  const date = new Date(today * DAY_MS);
  if (unit === 'day') return today + 1;
  if (unit === 'week') return today + 7 - ((date.getUTCDay() + 6) % 7);
  if (unit === 'month') return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + 1, 1) / DAY_MS;
  throw new RangeError(`unit is day, week or month, not ${unit}`);
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

export class Quota {
  constructor(limits, unit, units, zone) {
    this.limit = limits.limit(`quota:${unit}`, new Fixed(`${units}/${PERIODS[unit]}`));
    this.end = (ms) => endOf(unit, zone, ms);
  }

  /** Takes units until the window ends. */
  take(key, cost = 1, ms = Date.now()) {
    return this.limit.until(key, this.end(ms), cost);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
  const quota = new Quota(new Limits(redis), 'month', 10_000, 'Europe/Berlin');
  const decision = await quota.take('customer:42');
  if (decision.allowed) console.log(decision.remaining, 'are left');
  else console.log(`The quota is used up. It is full again in ${decision.reset} seconds.`);
  redis.disconnect();
}
