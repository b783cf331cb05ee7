import { Fixed } from './policies.js';

/** @typedef {import('./limits.js').Limits} Limits */
/** @typedef {import('./limits.js').RateLimit} RateLimit */

/** The highest limit. The server only counts, because express-rate-limit compares the count with the limit itself. */
const UNLIMITED = 1_000_000_000_000;

/** @type {WeakMap<Limits, Map<string, number>>} how many stores have a name */
const names = new WeakMap();

/**
 * A store for express-rate-limit: a fixed window, one call for each request. The key on the server is the prefix of the
 * `Limits`, the name, a colon and the key of express-rate-limit. The default name is `store:` and the window in milliseconds;
 * two limits with the same window need two names. With `resetExpiryOnChange`, each request begins the window anew. If the
 * server gives no decision, express-rate-limit passes the error to `next`, or lets the request through with
 * `passOnStoreError: true`. With `onDown: 'open'` of the `Limits`, the request counts as the first of its window, and is let
 * through.
 */
export class RedisRlStore {
  #limits;
  #name;
  #renews;
  /** @type {RateLimit | undefined} */
  #limit;
  #windowMs = 0;
  /** express-rate-limit reads this, to detect requests that are counted twice. */
  prefix = '';
  /** All processes count together. */
  localKeys = false;

  /**
   * @param {Limits} limits
   * @param {{ name?: string, resetExpiryOnChange?: boolean }} [options]
   */
  constructor(limits, { name, resetExpiryOnChange = false } = {}) {
    this.#limits = limits;
    this.#name = name;
    this.#renews = resetExpiryOnChange;
  }

  /** @param {{ windowMs: number }} options */
  init({ windowMs }) {
    const name = this.#name ?? `store:${windowMs}`;
    this.#limit = this.#limits.limit(name, new Fixed(`${UNLIMITED}/${windowMs}ms`));
    this.prefix = `${name}:`;
    const stores = names.get(this.#limits) ?? new Map();
    names.set(this.#limits, stores);
    const others = stores.get(name) ?? 0;
    stores.set(name, others + 1);
    if (others === 1) this.#limits.warn(`two stores have the name ${name}, so they count together: give each a name of its own`);
    this.#windowMs = windowMs;
  }

  get #fixed() {
    if (!this.#limit) throw new Error('express-rate-limit has not initialised the store');
    return this.#limit;
  }

  /** @param {string} key */
  async increment(key) {
    const decision = await (this.#renews ? this.#fixed.takeInNewWindow(key) : this.#fixed.take(key));
    // Nobody knows the count. express-rate-limit takes a count below 1 for a mistake, and lets the first request through.
    if (!decision.counted) return { totalHits: 1, resetTime: new Date(Date.now() + this.#windowMs) };
    return counted(decision);
  }

  /** @param {string} key */
  async decrement(key) {
    await this.#fixed.refund(key, 1);
  }

  /** @param {string} key */
  async get(key) {
    const decision = await this.#fixed.peek(key);
    return decision.counted ? counted(decision) : undefined;
  }

  /** @param {string} key */
  async resetKey(key) {
    await this.#fixed.forget(key);
  }

  /** Deletes the counts of all keys of this store, on all nodes. It searches all keys of the server by `SCAN`. */
  async resetAll() {
    await this.#fixed.forgetAll();
  }
}

/** @param {import('./decision.js').Decision} decision */
function counted({ limit, remaining, resetMs }) {
  return { totalHits: limit - remaining, resetTime: new Date(Date.now() + resetMs) };
}
