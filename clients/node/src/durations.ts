import { InvalidLimit, InvalidWait } from './errors.js';

/** The units of a duration in microseconds, and how many decimals a number of them may have to be exact to the microsecond. */
const UNITS: Record<string, [us: bigint, decimals: number]> = {
  us: [1n, 0],
  ms: [1_000n, 3],
  s: [1_000_000n, 6],
  m: [60_000_000n, 7],
  h: [3_600_000_000n, 8],
  d: [86_400_000_000n, 8],
};
/** Other names of units. */
const NAMES: Record<string, string> = {
  sec: 's', second: 's', seconds: 's', min: 'm', minute: 'm', minutes: 'm', hr: 'h', hour: 'h', hours: 'h', day: 'd', days: 'd',
};
const DAY_US = 86_400_000_000n;
export const DAY_MS = 86_400_000;

const FORMS =
  'a number of seconds, or text with a unit (us, ms, s, m, h, d, or sec, min, hour, day and so on), such as 250ms, 30s or 1.5h';

/** A duration: a number of seconds, or text such as `30s`. */
export type Time = number | string;

/** A duration, as microseconds and as the server takes it, in the largest unit that divides it. */
export class Duration {
  readonly text: string;

  constructor(readonly us: bigint) {
    const suffix = us === 0n ? 's' : (['d', 'h', 'm', 's', 'ms'].find((suffix) => us % UNITS[suffix][0] === 0n) ?? 'us');
    this.text = `${us / UNITS[suffix][0]}${suffix}`;
    Object.freeze(this);
  }

  get ms() {
    return Number(this.us) / 1000;
  }

  /** Whole seconds, rounded up, at least 1. */
  get wholeSeconds() {
    return Math.max(1, Number((this.us + 999_999n) / 1_000_000n));
  }

  toString() {
    return this.text;
  }

  /** As text, because JSON has no `bigint`. */
  toJSON() {
    return this.text;
  }
}

/** A duration: a number of seconds, or text with a unit, such as `30s`; `m` alone is `1m`. Undefined if it is neither. */
function parsed(value: unknown): Duration | undefined {
  if (typeof value === 'number') {
    if (!(value >= 0 && value <= 1e12)) return undefined;
    return new Duration(BigInt(Math.round(value * 1e6)));
  }
  const parts = typeof value === 'string' ? /^(?:(\d+)(?:\.(\d+))? ?)?([a-z]+)$/i.exec(value) : null;
  if (!parts) return undefined;
  const [, whole = '1', fraction = '', name] = parts;
  const suffix = name.toLowerCase();
  const unit = UNITS[NAMES[suffix] ?? suffix];
  if (!unit || fraction.length > unit[1]) return undefined;
  return new Duration(BigInt(whole) * unit[0] + (BigInt(`0${fraction}`) * unit[0]) / 10n ** BigInt(fraction.length));
}

/** A duration in this range. */
function within(value: unknown, least: bigint, most: bigint, rule: string, error: new (message: string) => Error = InvalidLimit) {
  const duration = parsed(value);
  if (duration && duration.us >= least && duration.us <= most) return duration;
  throw new error(`${rule}: ${FORMS}; not ${shown(value)}`);
}

export const period = (value: unknown, name: string) => within(value, 1000n, 3650n * DAY_US, `${name} must be from 1ms to 3650d`);

/** How long a call may wait, in milliseconds. 0 and undefined mean that it does not wait. */
export function waitMs(value: unknown) {
  return value === undefined ? 0 : within(value, 0n, DAY_US, 'a wait must be from 0 to 1d', InvalidWait).ms;
}

/** How long a pause lasts. */
export const pauseOf = (value: unknown) => within(value, 1000n, 31n * DAY_US, 'a pause must be from 1ms to 31d', InvalidWait);

/** An option of `Limits` in milliseconds. */
export function optionMs(value: unknown, name: string, leastMs: number, mostMs: number) {
  const rule = `${name} must be from ${leastMs / 1000} to ${mostMs / 1000} seconds`;
  return within(value, BigInt(leastMs) * 1000n, BigInt(mostMs) * 1000n, rule).ms;
}

/** An offset of windows, as the server takes it: a duration less than the period, with or without a sign. */
export function offset(value: unknown, period: Duration) {
  const negative = typeof value === 'number' ? value < 0 : typeof value === 'string' && value.startsWith('-');
  const size = typeof value === 'number' ? Math.abs(value) : typeof value === 'string' ? value.replace(/^[+-]/, '') : value;
  const duration = parsed(size);
  if (duration && duration.us < period.us) return `${negative ? '-' : ''}${duration.text}`;
  throw new InvalidLimit(`align must be less than the period, either way: ${FORMS}; not ${shown(value)}`);
}

export function shown(value: unknown) {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}...` : value);
  return typeof value === 'object' || typeof value === 'function' ? typeof value : String(value);
}
