import { Calendar } from './calendar.js';
import { offset, period, shown } from './durations.js';
import { InvalidLimit } from './errors.js';

/** @import { Duration } from './durations.js' */
/** @typedef {string | Buffer} Word a word of a command */

const MOST = 1_000_000_000_000;
const MOST_SLIDE = 4_294_967_295;
const MOST_SEGMENTS = 65_536;
const MOST_LEASE = 65_536;

/** @param {unknown} value @param {string} name @param {number} least @param {number} most @returns {number} */
function whole(value, name, least, most) {
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new InvalidLimit(`${name} must be a whole number from ${least} to ${most}, not ${shown(value)}`);
}

/** A policy: how many units, in which time, by which algorithm. It is a value, without a connection. */
export class Policy {
  /**
   * @param {string} algorithm @param {number} limit @param {Duration} period @param {readonly string[]} [options]
   * @param {number} [capacity]
   */
  constructor(algorithm, limit, period, options = [], capacity = limit) {
    /** The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`. */
    this.algorithm = algorithm;
    /** The units for each period; for a lease, the places. */
    this.limit = limit;
    /** The period; for a lease, its time to live. */
    this.period = period;
    /** The options, as the server takes them. */
    this.options = Object.freeze([...options]);
    /** The units that may be taken at once. */
    this.capacity = limit && capacity;
  }

  /**
   * The policy as the server takes it: the limit, the period and the options.
   * @param {number} [_now] the Unix time in milliseconds @returns {string[]}
   */
  words(_now) {
    return [String(this.limit), this.period.text, ...this.options];
  }

  /**
   * The seconds of the window, for the header fields; undefined if there is none.
   * @param {number} [_now] the Unix time in milliseconds @returns {number | undefined}
   */
  window(_now) {
    return this.period.wholeSeconds;
  }

  /** Whether both are the same policy. `60s` and `1m` are the same period. @param {unknown} other */
  equals(other) {
    return other instanceof Policy && String(other) === String(this);
  }

  /** The limit and the period: `10/m`, `100/15m`. */
  get rate() {
    return `${this.limit}/${this.period.text.replace(/^1(?=\D)/, '')}`;
  }

  toString() {
    return [this.algorithm, this.rate, ...this.options].join(' ');
  }
}

/** Throws if there is an option that the policy does not have. @param {object} others */
function none(others) {
  const names = Object.keys(others);
  if (names.length) throw new InvalidLimit(`the policy has no option ${names.join(', ')}`);
}

/** @param {unknown} value `10/m`, `100/15m`, `2/250ms` @param {number} most @returns {[limit: number, time: string]} */
function split(value, most) {
  const parts = typeof value === 'string' ? /^([0-9]+)\/(.*)$/s.exec(value) : null;
  if (!parts) throw new InvalidLimit(`a rate is text such as 10/m, 100/15m or 2/250ms, not ${shown(value)}`);
  return [whole(Number(parts[1]), 'limit', 0, most), parts[2]];
}

/** @param {unknown} value @param {number} [most] @returns {[limit: number, period: Duration]} */
function rate(value, most = MOST) {
  const [limit, time] = split(value, most);
  return [limit, period(time, 'the period')];
}

/** A fixed window: `limit` units in each period, which begins with the first grant, or with the clock or the calendar. */
export class Fixed extends Policy {
  #calendar;
  #zone;

  /**
   * @param {string} perPeriod such as `1000/d`
   * @param {{ align?: string | number, zone?: string }} [options] `align`: windows begin at each multiple of the period since
   *     1970 (UTC), shifted by this duration, which may have a sign: `-8h`. `zone`: windows are the days (`d`), weeks (`week`)
   *     or months (`month`) of this time zone, such as `America/New_York`
   */
  constructor(perPeriod, { align, zone, ...others } = {}) {
    none(others);
    if (zone !== undefined) {
      if (align !== undefined) throw new InvalidLimit("align and zone can't be combined");
      const [limit, unit] = split(perPeriod, MOST);
      const calendar = new Calendar(unit, zone);
      super('FIXED', limit, period(calendar.period, 'the period'));
      this.#calendar = calendar;
      this.#zone = zone;
    } else {
      const [limit, time] = rate(perPeriod);
      super('FIXED', limit, time, align === undefined ? [] : ['ALIGN', offset(align, time)]);
    }
  }

  /** Whether a call may say when its window ends. */
  get isPlain() {
    return !this.options.length && !this.#calendar;
  }

  words(now = Date.now()) {
    return this.#calendar ? [...super.words(), 'UNTIL', String(this.#calendar.at(now).ends)] : super.words();
  }

  window(now = Date.now()) {
    if (!this.#calendar) return super.window();
    const { starts, ends } = this.#calendar.at(now);
    return ends - starts;
  }

  get rate() {
    return this.#calendar ? `${this.limit}/${this.#calendar.text}` : super.rate;
  }

  toString() {
    return this.#zone === undefined ? super.toString() : `${super.toString()} ZONE ${this.#zone}`;
  }
}

/** A sliding window: no window of one period, wherever it begins, has more than `limit` units. */
export class Slide extends Policy {
  /**
   * @param {string} perPeriod such as `100/m`
   * @param {{ segments?: number }} [options] `segments`: the number of ticks in a period; fewer make the log smaller
   */
  constructor(perPeriod, { segments, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod, MOST_SLIDE);
    super('SLIDE', limit, time, segments === undefined ? [] : ['SEGMENTS', String(whole(segments, 'segments', 1, MOST_SEGMENTS))]);
  }
}

/** The generic cell rate algorithm: units come back evenly, and up to `burst` units may be taken at once. */
export class Gcra extends Policy {
  /**
   * @param {string} perPeriod such as `10/m`
   * @param {{ burst?: number }} [options] `burst`: the units that may be taken at once; the default is the limit
   */
  constructor(perPeriod, { burst, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    super('GCRA', limit, time, burst === undefined ? [] : ['BURST', String(whole(burst, 'burst', 1, MOST))], burst);
  }
}

/** A bucket: tokens flow in at the rate, and the bucket holds `capacity` of them. */
export class Bucket extends Policy {
  /**
   * @param {string} perPeriod such as `10/h`
   * @param {{ capacity?: number, step?: boolean }} [options] `capacity`: the tokens that the bucket holds; the default is the
   *     limit. `step`: all tokens of a period arrive at its end
   */
  constructor(perPeriod, { capacity, step = false, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    const size = capacity === undefined ? [] : ['CAPACITY', String(whole(capacity, 'capacity', 1, MOST))];
    super('BUCKET', limit, time, step ? [...size, 'STEP'] : size, capacity);
  }
}

/** Places that are held until they are released, or until `ttl` has passed since the last renewal: at most `limit` at a time. */
export class Lease extends Policy {
  /** @param {number} limit @param {number | string} ttl seconds, or text such as `30s` */
  constructor(limit, ttl) {
    super('LEASE', whole(limit, 'limit', 0, MOST_LEASE), period(ttl, 'ttl'));
  }

  /** The time to live. */
  get ttl() {
    return this.period;
  }

  window() {
    return undefined;
  }
}
