import { RateLimitError, UnexpectedReply } from './errors.js';
import { Named, type Policy } from './policies.js';

export type Source = 'server' | 'wallet' | 'repeated' | 'down';

/** What decisions about one limit and about several have in common. */
abstract class Outcome {
  /** Milliseconds: denied: until this call would be granted, null means never; granted: 0, or until booked units are free. */
  readonly waitMs: number | null;

  constructor(
    waitMs: number,
    /** Whether the call may go on. True also for a refund that found nothing to give back. */
    readonly allowed: boolean,
  ) {
    this.waitMs = waitMs < 0 ? null : waitMs;
  }

  /** `waitMs` in seconds. */
  get wait() {
    return this.waitMs === null ? null : this.waitMs / 1000;
  }
}

/** What was decided about one limit. */
export class Decision extends Outcome {
  /** The units that were granted; 0 if the call was denied. */
  readonly granted: number;
  /** The units that may be taken at once: the limit, the burst or the capacity. */
  readonly limit: number;
  /** The units that could be taken right now. */
  readonly remaining: number;
  /** Milliseconds until no unit is in use. */
  readonly resetMs: number;
  /** When it was decided, for the windows of a calendar. */
  readonly #at: number;

  constructor(
    /** The name of the limit. */
    readonly name: string,
    /** The policy of the limit. */
    readonly policy: Policy,
    reply: readonly number[],
    /** What decided: the server, a wallet, a denial of before that is repeated, or `onDown`. */
    readonly source: Source = 'server',
    at = Date.now(),
  ) {
    const [granted, limit, remaining, waitMs, resetMs] = reply;
    super(waitMs, granted > 0 || waitMs === 0);
    [this.granted, this.limit, this.remaining, this.resetMs, this.#at] = [granted, limit, remaining, resetMs, at];
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
    const { name, policy } = this;
    const window = policy.window(this.#at);
    const unit = window !== undefined ? `;w=${window}` : policy.algorithm === 'LEASE' ? ';qu="concurrent-requests"' : '';
    return `${quoted(name)};q=${policy instanceof Named ? this.limit : policy.limit}${unit}`;
  }
}

/** What was decided about several limits, of which all are charged, or none. */
export class AllDecision extends Outcome {
  constructor(
    /** Whether all limits were granted. */
    readonly granted: boolean,
    waitMs: number,
    /** One decision for each limit, in the order of the call. */
    readonly decisions: readonly Decision[],
    /** The id of the charge, if it has one. */
    readonly id: string | undefined,
  ) {
    super(waitMs, granted);
  }

  /** The header fields for HTTP. */
  headers() {
    return headers(this.decisions);
  }
}

/** The decisions about each limit. */
export const eachOf = (decision: Decision | AllDecision) => ('decisions' in decision ? decision.decisions : [decision]);

/** A block was denied. */
export class RateLimited extends RateLimitError {
  /** What was decided, for each limit. */
  readonly decisions: readonly Decision[];
  /** The status for HTTP. */
  readonly status = 429;

  constructor(readonly decision: Decision | AllDecision) {
    const { wait } = decision;
    const decisions = eachOf(decision);
    const { 'violated-policies': refused } = problem(decisions);
    super(`the limit ${refused.join(', ')} is reached; retry ${wait === null ? 'never' : `in ${wait} s`}`);
    this.decisions = decisions;
  }

  /** Seconds until the same call would be granted; null means never. */
  get retryAfter() {
    return this.decision.wait;
  }

  /** The header fields for HTTP. */
  headers() {
    return this.decision.headers();
  }

  /** The body for HTTP, `application/problem+json`. */
  problem() {
    return problem(this.decisions);
  }
}

/** The problem type of draft-ietf-httpapi-ratelimit-headers-11. */
function problem(decisions: readonly Decision[]) {
  return {
    type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
    status: 429,
    'violated-policies': decisions.filter(({ allowed }) => !allowed).map(({ name }) => name),
  };
}

/**
 * The header fields for HTTP of several decisions: `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11
 * list all of them, and the others describe the one that decides: the denied one with the longest wait, or else the one with the
 * fewest remaining units.
 */
export function headers(decisions: readonly Decision[]): Record<string, string> {
  const known = decisions.filter(({ source }) => source !== 'down');
  if (!known.length) return {};
  const decisive = known.reduce((one, other) => (rank(other) < rank(one) ? other : one));
  const fields: Record<string, string> = {
    'RateLimit-Policy': known.map((decision) => decision.policyItem()).join(', '),
    RateLimit: known.map(stateItem).join(', '),
    'X-RateLimit-Limit': String(decisive.limit),
    'X-RateLimit-Remaining': String(decisive.remaining),
    'X-RateLimit-Reset': String(up(decisive.resetMs)),
  };
  if (!decisive.allowed && decisive.waitMs !== null) fields['Retry-After'] = String(up(decisive.waitMs));
  return fields;
}

/** A denial comes before a grant, a longer wait before a shorter one, and fewer remaining units before more. */
function rank({ allowed, waitMs, remaining }: Decision) {
  if (allowed) return remaining;
  return waitMs === null ? -Infinity : -1 - waitMs;
}

function stateItem({ name, remaining, allowed, waitMs, resetMs }: Decision) {
  const time = allowed ? resetMs : waitMs;
  return `${quoted(name)};r=${remaining}${time === null ? '' : `;t=${up(time)}`}`;
}

function up(ms: number) {
  return Math.ceil(ms / 1000);
}

/** A string of a structured field. A name is printable ASCII. */
function quoted(name: string) {
  return `"${name.replace(/["\\]/g, '\\$&')}"`;
}

/** The integers of a reply. */
export function integers(reply: unknown): number[] {
  if (Array.isArray(reply) && reply.length === 5 && reply.every(Number.isSafeInteger)) return reply;
  throw new UnexpectedReply(`the reply is not five integers: ${inShort(reply)}`);
}

/** The milliseconds of a reply. */
export function milliseconds(reply: unknown): number {
  if (Number.isSafeInteger(reply) && Number(reply) >= 0) return Number(reply);
  throw new UnexpectedReply(`the reply is no length of time: ${inShort(reply)}`);
}

export function integersOfAll(reply: unknown, count: number): [granted: number, wait: number, rows: number[][]] {
  if (Array.isArray(reply) && reply.length === 3 && Array.isArray(reply[2]) && reply[2].length === count) {
    const [granted, wait, rows] = reply;
    if (Number.isSafeInteger(granted) && Number.isSafeInteger(wait)) return [granted, wait, rows.map(integers)];
  }
  throw new UnexpectedReply(`the reply is not that of RL.ALL: ${inShort(reply)}`);
}

function inShort(reply: unknown) {
  return (JSON.stringify(reply, (_, value) => (typeof value === 'bigint' ? String(value) : value)) ?? String(reply)).slice(0, 200);
}
