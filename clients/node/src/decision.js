import { RateLimited, UnexpectedReply } from './errors.js';

/** @typedef {import('./policies.js').Policy} Policy */

/**
 * What the server decided about one limit.
 */
export class Decision {
  /**
   * @param {string} name the name of the limit
   * @param {Policy} policy
   * @param {readonly number[]} reply the five integers
   * @param {{ counted?: boolean }} [options]
   */
  constructor(name, policy, [granted, limit, remaining, waitMs, resetMs], { counted = true } = {}) {
    /** The name of the limit. */
    this.name = name;
    /** The policy of the limit. */
    this.policy = policy;
    /** The units that were granted; 0 if the call was denied. */
    this.granted = granted;
    /** The units that may be taken at once: the limit, the burst or the capacity. */
    this.limit = limit;
    /** The units that could be taken right now. */
    this.remaining = remaining;
    /** Milliseconds: denied: until this call would be granted, null means never; granted: 0, or until a booking begins. */
    this.waitMs = waitMs < 0 ? null : waitMs;
    /** Milliseconds until no unit is in use. */
    this.resetMs = resetMs;
    /** Whether the call may go on. True also for a refund that found nothing to give back. */
    this.allowed = granted > 0 || waitMs === 0;
    /** False if the server gave no decision, and the call was let through because of `onDown: 'open'`. */
    this.counted = counted;
  }

  /** `waitMs` in seconds. */
  get wait() {
    return this.waitMs === null ? null : this.waitMs / 1000;
  }

  /** `resetMs` in seconds. */
  get reset() {
    return this.resetMs / 1000;
  }

  /**
   * The header fields for HTTP. With several decisions, `RateLimit-Policy` and `RateLimit` list all of them, and the others
   * describe the one that decides: the denied one with the longest wait, or else the one with the fewest remaining units.
   *
   * @param {readonly Decision[]} [all]
   * @returns {Record<string, string>}
   */
  headers(all = [this]) {
    return headers(all);
  }

  toString() {
    if (!this.counted) return `${this.name}: let through, not counted`;
    const wait = this.wait === null ? 'for ever' : `for ${this.wait} s`;
    return `${this.name}: ${this.allowed ? `${this.granted} granted` : `denied ${wait}`}, ${this.remaining} of ${this.limit} left`;
  }

  /** Throws `RateLimited` if the call was denied. */
  throwIfDenied() {
    if (!this.allowed) throw new RateLimited(this);
    return this;
  }
}

/** What the server decided about several limits, of which all are charged, or none. */
export class AllDecision {
  /**
   * @param {boolean} granted
   * @param {number} waitMs
   * @param {readonly Decision[]} decisions
   * @param {string | undefined} id
   * @param {boolean} [counted]
   */
  constructor(granted, waitMs, decisions, id, counted = true) {
    /** Whether all limits were granted. */
    this.granted = granted;
    /** Milliseconds until this call would be granted; null means never. */
    this.waitMs = waitMs < 0 ? null : waitMs;
    /** One decision for each limit, in the order of the call. */
    this.decisions = decisions;
    /** The id of the charge, if it has one. */
    this.id = id;
    this.counted = counted;
  }

  get allowed() {
    return this.granted;
  }

  get wait() {
    return this.waitMs === null ? null : this.waitMs / 1000;
  }

  /** The names of the limits that refused; of all, if none did. */
  get name() {
    const refused = this.decisions.filter(({ allowed }) => !allowed);
    return (refused.length ? refused : this.decisions).map(({ name }) => name).join(', ');
  }

  headers() {
    return headers(this.decisions);
  }

  toString() {
    return this.decisions.join('; ');
  }

  /** Throws `RateLimited` if the call was denied. */
  throwIfDenied() {
    if (!this.granted) throw new RateLimited(this);
    return this;
  }
}

/**
 * The header fields for HTTP of several decisions.
 *
 * @param {readonly Decision[]} decisions
 * @returns {Record<string, string>}
 */
export function headers(decisions) {
  const counted = decisions.filter((decision) => decision.counted);
  if (!counted.length) return {};
  const decisive = counted.reduce((one, other) => (rank(other) < rank(one) ? other : one));
  /** @type {Record<string, string>} */
  const fields = {
    'RateLimit-Policy': counted.map(policyItem).join(', '),
    RateLimit: counted.map(stateItem).join(', '),
    'X-RateLimit-Limit': String(decisive.limit),
    'X-RateLimit-Remaining': String(decisive.remaining),
    'X-RateLimit-Reset': String(up(decisive.resetMs)),
  };
  if (!decisive.allowed && decisive.waitMs !== null) fields['Retry-After'] = String(up(decisive.waitMs));
  return fields;
}

/**
 * A denial comes before a grant, a longer wait before a shorter one, and fewer remaining units before more.
 *
 * @param {Decision} decision
 */
function rank({ allowed, waitMs, remaining }) {
  if (allowed) return remaining;
  return waitMs === null ? -Infinity : -1 - waitMs;
}

/** @param {Decision} decision */
function policyItem({ name, policy }) {
  const window = policy.algorithm === 'LEASE' ? 'qu="concurrent-requests"' : `w=${policy.period.wholeSeconds}`;
  return `${quoted(name)};q=${policy.limit};${window}`;
}

/** @param {Decision} decision */
function stateItem({ name, remaining, allowed, waitMs, resetMs }) {
  const time = allowed ? resetMs : waitMs;
  return `${quoted(name)};r=${remaining}${time === null ? '' : `;t=${up(time)}`}`;
}

/** @param {number} ms */
function up(ms) {
  return Math.ceil(ms / 1000);
}

/**
 * A string of a structured field. A name is printable ASCII.
 *
 * @param {string} name
 */
function quoted(name) {
  return `"${name.replace(/["\\]/g, '\\$&')}"`;
}

/**
 * The integers of a reply. Some clients return them as text, if they are told to.
 *
 * @param {unknown} reply
 * @returns {number[]}
 */
export function integers(reply) {
  if (Array.isArray(reply) && reply.length === 5) {
    const numbers = reply.map(integer);
    if (numbers.every(Number.isSafeInteger)) return numbers;
  }
  throw new UnexpectedReply(`the reply is not five integers: ${inShort(reply)}`);
}

/** @param {unknown} value */
export function integer(value) {
  if (typeof value === 'number') return value;
  return typeof value === 'bigint' || (typeof value === 'string' && /^-?\d+$/.test(value)) ? Number(value) : NaN;
}

/** @param {unknown} reply */
export function inShort(reply) {
  const text = JSON.stringify(reply, (_, value) => (typeof value === 'bigint' ? String(value) : value)) ?? String(reply);
  return text.length > 200 ? `${text.slice(0, 200)}...` : text;
}
