import { MOST_UNITS } from './checks.js';
import type { Decision } from './decision.js';
import type { RateLimit } from './limit.js';
import type { Limits } from './limits.js';
import { Fixed } from './policies.js';

/** The highest limit. The server only counts, because express-rate-limit compares the count with the limit itself. */
const UNLIMITED = MOST_UNITS;

/**
 * A store for express-rate-limit: a fixed window, one call for each request. The key on the server is the prefix of the `Limits`, the
 * name, a colon and the key of express-rate-limit. The default name is `store-` and the window in milliseconds; two limits with the
 * same window need two names. If the server gives no decision, express-rate-limit passes the error to `next`, or lets the request
 * through with `passOnStoreError: true`. With `onDown: 'open'` of the `Limits`, the request counts as the first of its window; with a
 * `Gcra`, that decides.
 */
export class RedisRlStore {
  readonly #limits;
  readonly #name;
  #limit?: RateLimit;
  #windowMs = 0;
  /** express-rate-limit reads this, to detect requests that are counted twice. */
  prefix = '';
  /** All processes count together. */
  localKeys = false;

  constructor(limits: Limits, { name }: { name?: string } = {}) {
    this.#limits = limits;
    this.#name = name;
  }

  init({ windowMs }: { windowMs: number }) {
    const name = this.#name ?? `store-${windowMs}`;
    this.#limit = this.#limits.limit(name, new Fixed(`${UNLIMITED}/${windowMs}ms`));
    this.prefix = `${name}:`;
    this.#windowMs = windowMs;
  }

  get #fixed() {
    if (!this.#limit) throw new Error('express-rate-limit has not initialised the store');
    return this.#limit;
  }

  async increment(key: string) {
    const decision = await this.#fixed.take(key);
    if (decision.source !== 'down') return counted(decision);
    // Nobody knows the count. express-rate-limit takes a count below 1 for a mistake, and lets the first request through.
    const totalHits = decision.allowed ? 1 : UNLIMITED;
    return { totalHits, resetTime: new Date(Date.now() + (decision.waitMs || this.#windowMs)) };
  }

  async decrement(key: string) {
    await this.#fixed.refund(key, 1);
  }

  async get(key: string) {
    const decision = await this.#fixed.peek(key);
    return decision.source === 'down' ? undefined : counted(decision);
  }

  /** Gives back all that a key has used in its window. */
  async resetKey(key: string) {
    await this.#fixed.refund(key, UNLIMITED);
  }
}

function counted({ limit, remaining, resetMs }: Decision) {
  return { totalHits: limit - remaining, resetTime: new Date(Date.now() + resetMs) };
}
