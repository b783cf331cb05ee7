import { problem, RateLimited, UnexpectedReply } from './errors.js';

/** @import { Policy } from './policies.js' */
/** @typedef {'server' | 'wallet' | 'repeated' | 'down'} Source */

/** What was decided about one limit. */
export class Decision {
  /** When it was decided, for the windows of a calendar. */
  #at;

  /**
   * @param {string} name the name of the limit @param {Policy} policy @param {readonly number[]} reply the five integers
   * @param {Source} [source] @param {number} [at] the Unix time in milliseconds
   */
  constructor(name, policy, [granted, limit, remaining, waitMs, resetMs], source = 'server', at = Date.now()) {
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
    /** Milliseconds: denied: until this call would be granted, null means never; granted: 0, or until booked units are free. */
    this.waitMs = waitMs < 0 ? null : waitMs;
    /** Milliseconds until no unit is in use. */
    this.resetMs = resetMs;
    /** Whether the call may go on. True also for a refund that found nothing to give back. */
    this.allowed = granted > 0 || waitMs === 0;
    /** What decided: the server, a wallet, a denial of before that is repeated, or `onDown`. */
    this.source = source;
    this.#at = at;
  }

  /** `waitMs` in seconds. */
  get wait() {
    return inSeconds(this.waitMs);
  }

  /** `resetMs` in seconds. */
  get reset() {
    return this.resetMs / 1000;
  }

  /** The header fields for HTTP. */
  headers() {
    return headers([this]);
  }

  /** The body for HTTP of a denial, `application/problem+json`. */
  problem() {
    return problem([this]);
  }

  /** Throws `RateLimited` if the call was denied. */
  throwIfDenied() {
    if (!this.allowed) throw new RateLimited(this);
    return this;
  }

  /** @internal */
  policyItem() {
    const window = this.policy.window(this.#at);
    return `${quoted(this.name)};q=${this.policy.limit};${window === undefined ? 'qu="concurrent-requests"' : `w=${window}`}`;
  }
}

/** What was decided about several limits, of which all are charged, or none. */
export class AllDecision {
  /** @param {boolean} granted @param {number} waitMs @param {readonly Decision[]} decisions @param {string | undefined} id */
  constructor(granted, waitMs, decisions, id) {
    /** Whether all limits were granted. */
    this.granted = granted;
    /** Whether the call may go on. */
    this.allowed = granted;
    /** Milliseconds until this call would be granted; null means never. */
    this.waitMs = waitMs < 0 ? null : waitMs;
    /** One decision for each limit, in the order of the call. */
    this.decisions = decisions;
    /** The id of the charge, if it has one. */
    this.id = id;
  }

  /** Seconds until this call would be granted; null means never. */
  get wait() {
    return inSeconds(this.waitMs);
  }

  /** The header fields for HTTP. */
  headers() {
    return headers(this.decisions);
  }
}

/** @param {number | null} ms */
const inSeconds = (ms) => (ms === null ? null : ms / 1000);

/**
 * The header fields for HTTP of several decisions: `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11
 * list all of them, and the others describe the one that decides: the denied one with the longest wait, or else the one with the
 * fewest remaining units.
 * @param {readonly Decision[]} decisions @returns {Record<string, string>}
 */
export function headers(decisions) {
  const known = decisions.filter(({ source }) => source !== 'down');
  if (!known.length) return {};
  const decisive = known.reduce((one, other) => (rank(other) < rank(one) ? other : one));
  /** @type {Record<string, string>} */
  const fields = {
    'RateLimit-Policy': known.map((decision) => decision.policyItem()).join(', '),
    RateLimit: known.map(stateItem).join(', '),
    'X-RateLimit-Limit': String(decisive.limit),
    'X-RateLimit-Remaining': String(decisive.remaining),
    'X-RateLimit-Reset': String(up(decisive.resetMs)),
  };
  if (!decisive.allowed && decisive.waitMs !== null) fields['Retry-After'] = String(up(decisive.waitMs));
  return fields;
}

/**
 * A denial comes before a grant, a longer wait before a shorter one, and fewer remaining units before more.
 * @param {Decision} decision
 */
function rank({ allowed, waitMs, remaining }) {
  if (allowed) return remaining;
  return waitMs === null ? -Infinity : -1 - waitMs;
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

/** A string of a structured field. A name is printable ASCII. @param {string} name */
function quoted(name) {
  return `"${name.replace(/["\\]/g, '\\$&')}"`;
}

/** The integers of a reply. @param {unknown} reply @returns {number[]} */
export function integers(reply) {
  if (Array.isArray(reply) && reply.length === 5 && reply.every(Number.isSafeInteger)) return reply;
  throw new UnexpectedReply(`the reply is not five integers: ${inShort(reply)}`);
}

/** The milliseconds of a reply. @param {unknown} reply @returns {number} */
export function milliseconds(reply) {
  if (Number.isSafeInteger(reply) && Number(reply) >= 0) return Number(reply);
  throw new UnexpectedReply(`the reply is no length of time: ${inShort(reply)}`);
}

/** @param {unknown} reply @param {number} count @returns {[granted: number, wait: number, rows: number[][]]} */
export function integersOfAll(reply, count) {
  if (Array.isArray(reply) && reply.length === 3 && Array.isArray(reply[2]) && reply[2].length === count) {
    const [granted, wait, rows] = reply;
    if (Number.isSafeInteger(granted) && Number.isSafeInteger(wait)) return [granted, wait, rows.map(integers)];
  }
  throw new UnexpectedReply(`the reply is not that of RL.ALL: ${inShort(reply)}`);
}

/** @param {unknown} reply */
function inShort(reply) {
  return (JSON.stringify(reply, (_, value) => (typeof value === 'bigint' ? String(value) : value)) ?? String(reply)).slice(0, 200);
}
