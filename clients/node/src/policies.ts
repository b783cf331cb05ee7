import { Calendar } from './calendar.js';
import { MOST_UNITS, none, whole, type Word } from './checks.js';
import { type Duration, offset, period, shown } from './durations.js';
import { InvalidLimit } from './errors.js';

const MOST_SLIDE = 4_294_967_295;
const MOST_SEGMENTS = 65_536;
const MOST_LEASE = 65_536;
const MOST_NAMES = 16;

/** A policy: how many units, in which time, by which algorithm. It is a value, without a connection. */
export class Policy {
  /** The options, as the server takes them. */
  readonly options: readonly string[];
  /** The units that may be taken at once. */
  readonly capacity: number;

  constructor(
    /** The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`. */
    readonly algorithm: string,
    /** The units for each period; for a lease, the places. */
    readonly limit: number,
    /** The period; for a lease, its time to live. */
    readonly period: Duration,
    options: readonly string[] = [],
    capacity = limit,
  ) {
    this.options = Object.freeze([...options]);
    this.capacity = limit && capacity;
  }

  /** The policy as the server takes it, at this Unix time in milliseconds: the limit, the period and the options. */
  words(_now?: number): string[] {
    return [String(this.limit), this.period.text, ...this.options];
  }

  /** The seconds of the window at this Unix time, for the header fields; undefined if there is none. */
  window(_now?: number): number | undefined {
    return this.period.wholeSeconds;
  }

  /** The limit and the period: `10/m`, `100/15m`. */
  get rate() {
    return `${this.limit}/${this.period.text.replace(/^1(?=\D)/, '')}`;
  }

  /** The same text for the same policy: `60s` and `1m` are the same period. */
  toString() {
    return [this.algorithm, this.rate, ...this.options].join(' ');
  }
}

function split(value: unknown, most: number): [limit: number, time: string] {
  const parts = typeof value === 'string' ? /^([0-9]+)\/(.*)$/s.exec(value) : null;
  if (!parts) throw new InvalidLimit(`a rate is text such as 10/m, 100/15m or 2/250ms, not ${shown(value)}`);
  return [whole(Number(parts[1]), 'limit', 0, most), parts[2]];
}

function rate(value: unknown, most = MOST_UNITS): [limit: number, period: Duration] {
  const [limit, time] = split(value, most);
  return [limit, period(time, 'the period')];
}

/** A fixed window: `limit` units in each period, which begins with the first grant, or with the clock or the calendar. */
export class Fixed extends Policy {
  readonly #calendar?: Calendar;
  readonly #zone?: string;

  /**
   * At a rate such as `1000/d`. `align`: windows begin at each multiple of the period since 1970 (UTC), shifted by this duration,
   * which may have a sign: `-8h`. `zone`: they are the days (`d`), weeks (`week`) or months (`month`) of a time zone, such as
   * `America/New_York`.
   */
  constructor(perPeriod: string, { align, zone, ...others }: { align?: string | number; zone?: string } = {}) {
    none(others);
    if (zone !== undefined) {
      if (align !== undefined) throw new InvalidLimit("align and zone can't be combined");
      const [limit, unit] = split(perPeriod, MOST_UNITS);
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

  override words(now = Date.now()) {
    return this.#calendar ? [...super.words(), 'UNTIL', String(this.#calendar.at(now).ends)] : super.words();
  }

  override window(now = Date.now()) {
    if (!this.#calendar) return super.window();
    const { starts, ends } = this.#calendar.at(now);
    return ends - starts;
  }

  override get rate() {
    return this.#calendar ? `${this.limit}/${this.#calendar.text}` : super.rate;
  }

  override toString() {
    return this.#zone === undefined ? super.toString() : `${super.toString()} ZONE ${this.#zone}`;
  }
}

/** A sliding window: no window of one period, wherever it begins, has more than `limit` units. */
export class Slide extends Policy {
  /** At a rate such as `100/m`. `segments`: the number of ticks in a period; fewer make the log smaller. */
  constructor(perPeriod: string, { segments, ...others }: { segments?: number } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod, MOST_SLIDE);
    super('SLIDE', limit, time, segments === undefined ? [] : ['SEGMENTS', String(whole(segments, 'segments', 1, MOST_SEGMENTS))]);
  }
}

/** The generic cell rate algorithm: units come back evenly, and up to `burst` units may be taken at once. */
export class Gcra extends Policy {
  /** At a rate such as `10/m`. `burst`: the units that may be taken at once; the default is the limit. */
  constructor(perPeriod: string, { burst, ...others }: { burst?: number } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    super('GCRA', limit, time, burst === undefined ? [] : ['BURST', String(whole(burst, 'burst', 1, MOST_UNITS))], burst);
  }
}

/** A bucket: tokens flow in at the rate, and the bucket holds `capacity` of them. */
export class Bucket extends Policy {
  /** At a rate such as `10/h`. `capacity`: what it holds; by default the limit. `step`: the tokens of a period come at its end. */
  constructor(perPeriod: string, { capacity, step = false, ...others }: { capacity?: number; step?: boolean } = {}) {
    none(others);
    const [limit, time] = rate(perPeriod);
    const size = capacity === undefined ? [] : ['CAPACITY', String(whole(capacity, 'capacity', 1, MOST_UNITS))];
    super('BUCKET', limit, time, step ? [...size, 'STEP'] : size, capacity);
  }
}

/** Places that are held until they are released, or until `ttl` has passed since the last renewal: at most `limit` at a time. */
export class Lease extends Policy {
  /** So many places. The time to live is in seconds, or a text such as `30s`. */
  constructor(limit: number, ttl: number | string) {
    super('LEASE', whole(limit, 'limit', 0, MOST_LEASE), period(ttl, 'ttl'));
  }

  /** The time to live. It also tells the type from others. */
  get ttl() {
    return this.period;
  }

  override window() {
    return undefined;
  }
}

/**
 * A policy by its name: the key on the server that holds the rule, which an operator can change for all callers. The name is that on the
 * server: nothing is put before it. The calls that wait keep the rule that they came with.
 */
export class Named<P extends Policy = Policy> extends Policy {
  /** What serves when no policy key exists. Whether it is a `Lease` decides which calls the limit has. */
  readonly default: P;
  readonly #name: string;
  readonly #overrides?: (key: Word) => readonly string[];

  /**
   * `overrides`: a function of a call's key (text, or bytes if it was given so) that returns names of policy keys, which come before the
   * own one: the first that exists counts. In a cluster all need the hash tag of the call's key. The holder of a lease counts with the
   * time to live of the default, so that of the policy must not be shorter.
   */
  constructor(name: string, defaultPolicy: P, { overrides, ...others }: { overrides?: (key: Word) => readonly string[] } = {}) {
    none(others);
    if (typeof name !== 'string' || !name) throw new InvalidLimit(`the name of a policy key is text, and not empty; not ${shown(name)}`);
    if (!(defaultPolicy instanceof Policy) || defaultPolicy instanceof Named) {
      throw new InvalidLimit(`the default is a Fixed, Slide, Gcra, Bucket or Lease, not ${shown(defaultPolicy)}`);
    }
    if (overrides !== undefined && typeof overrides !== 'function') throw new InvalidLimit('overrides is a function of the key');
    super(defaultPolicy.algorithm, defaultPolicy.limit, defaultPolicy.period, defaultPolicy.options, defaultPolicy.capacity);
    [this.default, this.#name, this.#overrides] = [defaultPolicy, name, overrides];
  }

  /** The policy keys of a call with this key, the first that counts first. */
  names(key: Word): string[] {
    const before = this.#overrides?.(key) ?? [];
    if (Array.isArray(before) && before.length < MOST_NAMES && before.every((name) => typeof name === 'string' && name)) {
      return [...before, this.#name];
    }
    throw new InvalidLimit(`overrides returns up to ${MOST_NAMES - 1} names of policy keys, not ${shown(before)}`);
  }

  /** The default, as the server takes it. */
  override words(now?: number) {
    return this.default.words(now);
  }

  override window() {
    return undefined;
  }

  override toString() {
    return `${this.#name}, or ${this.default}`;
  }
}

/** The policy, if it can be stated in a call that takes no policy keys. */
export function stated(policy: Policy) {
  if (!(policy instanceof Named)) return policy;
  throw new InvalidLimit('a Named limit cannot do this: peek, until and calls of several limits need a limit that states its policy');
}
