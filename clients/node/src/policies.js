import { offset, period, shown } from './durations.js';
import { InvalidLimit } from './errors.js';

/** @typedef {import('./durations.js').Duration} Duration */
/** @typedef {string | Buffer} Word a word of a command */

const MOST = 1_000_000_000_000;
const MOST_SLIDE = 4_294_967_295;
const MOST_SEGMENTS = 65_536;
const MOST_LEASE = 65_536;

/**
 * @param {unknown} value
 * @param {string} name
 * @param {number} least
 * @param {number} most
 * @returns {number}
 */
function whole(value, name, least, most) {
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new InvalidLimit(`${name} must be a whole number from ${least} to ${most}, not ${shown(value)}`);
}

/** A policy: how many units, in which time, by which algorithm. It is a value, without a connection. */
export class Policy {
  /**
   * @param {string} algorithm
   * @param {number} limit
   * @param {Duration} period
   * @param {readonly string[]} options
   */
  constructor(algorithm, limit, period, options) {
    /** The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`. */
    this.algorithm = algorithm;
    /** The units for each period; for a lease, the units that may be held at a time. */
    this.limit = limit;
    /** The period; for a lease, its time to live. */
    this.period = period;
    /** The options, as the server takes them. */
    this.options = Object.freeze([...options]);
    Object.freeze(this);
  }

  /** The units that may be taken at once. */
  get capacity() {
    return this.limit;
  }

  /** The policy as the server takes it: the limit, the period and the options. */
  words() {
    return [String(this.limit), this.period.text, ...this.options];
  }

  /**
   * The limiter's command for this key.
   *
   * @param {Word} key
   * @returns {Word[]}
   */
  command(key) {
    return [`RL.${this.algorithm}`, key, ...this.words()];
  }

  /**
   * Whether both are the same policy. `60s` and `1m` are the same period.
   *
   * @param {unknown} other
   */
  equals(other) {
    return other instanceof Policy && other.#identity() === this.#identity();
  }

  #identity() {
    return [this.algorithm, this.limit, this.period.us, ...this.options].join(' ');
  }

  /** The limit and the period: `10/m`, `100/15m`. */
  get rate() {
    return `${this.limit}/${this.period.text.replace(/^1(?=\D)/, '')}`;
  }

  toString() {
    return [this.algorithm, this.rate, ...this.options].join(' ');
  }

  toJSON() {
    return { algorithm: this.algorithm, limit: this.limit, period: this.period.text, options: this.options };
  }
}

/**
 * Throws if there is an option that the policy does not have.
 *
 * @param {object} others
 */
function none(others) {
  const names = Object.keys(others);
  if (names.length) throw new InvalidLimit(`the policy has no option ${names.join(', ')}`);
}

/**
 * @param {unknown} value `10/m`, `100/15m`, `2/250ms`
 * @param {number} [most]
 * @returns {[limit: number, period: Duration]}
 */
function rate(value, most = MOST) {
  const parts = typeof value === 'string' ? /^([0-9]+)\/(.*)$/s.exec(value) : null;
  if (!parts) throw new InvalidLimit(`a rate is text such as 10/m, 100/15m or 2/250ms, not ${shown(value)}`);
  const [, units, time] = parts;
  return [whole(Number(units), 'limit', 0, most), period(time, 'the period')];
}

/** A fixed window: `limit` units in each period, which begins with the first grant, or is aligned to the clock. */
export class Fixed extends Policy {
  /**
   * @param {string} perPeriod such as `1000/1d`
   * @param {{ align?: string | number }} [options] `align`: windows begin at each multiple of the period since 1970 (UTC),
   *     shifted by this duration, which may have a sign: `-8h`
   */
  constructor(perPeriod, { align, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    super('FIXED', limit, time, align === undefined ? [] : ['ALIGN', offset(align, time)]);
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
    const ticks = segments === undefined ? [] : ['SEGMENTS', String(whole(segments, 'segments', 1, MOST_SEGMENTS))];
    super('SLIDE', limit, time, ticks);
  }
}

/** The generic cell rate algorithm: units come back evenly, and up to `burst` units may be taken at once. */
export class Gcra extends Policy {
  #capacity;

  /**
   * @param {string} perPeriod such as `10/m`
   * @param {{ burst?: number }} [options] `burst`: the units that may be taken at once; the default is the limit
   */
  constructor(perPeriod, { burst, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    super('GCRA', limit, time, burst === undefined ? [] : ['BURST', String(whole(burst, 'burst', 1, MOST))]);
    this.#capacity = limit && (burst ?? limit);
  }

  get capacity() {
    return this.#capacity;
  }
}

/** A bucket: tokens flow in at the rate, and the bucket holds `capacity` of them. */
export class Bucket extends Policy {
  #capacity;

  /**
   * @param {string} perPeriod such as `10/h`
   * @param {{ capacity?: number, step?: boolean }} [options] `capacity`: the tokens that the bucket holds; the default is the
   *     limit. `step`: all tokens of a period arrive at its end
   */
  constructor(perPeriod, { capacity, step = false, ...others } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    const size = capacity === undefined ? [] : ['CAPACITY', String(whole(capacity, 'capacity', 1, MOST))];
    super('BUCKET', limit, time, step ? [...size, 'STEP'] : size);
    this.#capacity = limit && (capacity ?? limit);
  }

  get capacity() {
    return this.#capacity;
  }
}

/** Units that are held until they are released, or until `ttl` has passed since the last renewal: at most `limit` at a time. */
export class Lease extends Policy {
  /**
   * @param {number} limit
   * @param {number | string} ttl seconds, or text such as `30s`
   */
  constructor(limit, ttl) {
    super('LEASE', whole(limit, 'limit', 0, MOST_LEASE), period(ttl, 'ttl'), []);
  }

  /** The time to live. */
  get ttl() {
    return this.period;
  }

  get rate() {
    return `${this.limit}, ttl ${this.period.text}`;
  }
}
