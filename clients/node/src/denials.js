import { Buffer } from 'node:buffer';
import { performance } from 'node:perf_hooks';
import { checkedCost } from './checks.js';
import { Decision, integers } from './decision.js';

/** @typedef {import('./adapters/adapter.js').Call} Call */
/** @typedef {import('./adapters/adapter.js').NodeName} NodeName */
/** @typedef {import('./adapters/adapter.js').Track} Track */
/** @typedef {import('./adapters/adapter.js').Tracker} Tracker */
/** @typedef {import('./limits.js').Key} Key */
/** @typedef {import('./limits.js').RateLimit} RateLimit */

/** How many keys are remembered at most. */
const MOST_KEYS = 10_000;
/** The pause before connections for invalidations are opened again. */
const REOPEN_MS = 1000;

/**
 * A call with this cost, or a higher one, is denied until `until` on the monotonic clock, unless the key changes.
 *
 * @typedef {{ cost: number, limit: number, remaining: number, until: number, resetAt: number }} Denial
 */

/**
 * The denials of the last calls, by key. The server tells when one of these keys changes, because they are read on a
 * connection with client tracking.
 */
export class Denials {
  #track;
  #nodeName;
  #patienceMs;
  /** @type {Map<string, Denial>} in the order of their last use */
  #denials = new Map();
  /** @type {Map<string, { stale: boolean }>} the keys that are being read */
  #reading = new Map();
  /** @type {Map<string, Promise<Tracker>>} by node */
  #trackers = new Map();
  /** @type {Map<string, number>} by node */
  #reopenAt = new Map();
  #closed = false;

  /**
   * @param {Track} track
   * @param {NodeName} nodeName
   * @param {number} patienceMs
   */
  constructor(track, nodeName, patienceMs) {
    this.#track = track;
    this.#nodeName = nodeName;
    this.#patienceMs = patienceMs;
  }

  /**
   * The denial that a call would get; undefined if the server has to be asked.
   *
   * @param {string} name
   * @param {number} cost
   * @param {number} now
   */
  find(name, cost, now) {
    const denial = this.#denials.get(name);
    if (!denial) return undefined;
    this.#denials.delete(name);
    if (denial.until <= now) return undefined;
    this.#denials.set(name, denial);
    return cost >= denial.cost ? denial : undefined;
  }

  /** How many keys are remembered. */
  get size() {
    return this.#denials.size;
  }

  /**
   * Reads the denial again on a connection with tracking, and remembers it. A denied call itself is not tracked, because the
   * server tracks only what commands read that do not write.
   *
   * @param {string} name
   * @param {Call} peek
   * @param {number} cost
   */
  async remember(name, peek, cost) {
    if (this.#closed || this.#reading.has(name)) return;
    const reading = { stale: false };
    this.#reading.set(name, reading);
    try {
      const tracker = await this.#tracker(peek);
      if (!tracker || reading.stale) return;
      // From before the call, because the server counts the wait from a later moment.
      const began = performance.now();
      const [granted, limit, remaining, waitMs, resetMs] = integers(await tracker.send(peek, this.#patienceMs));
      if (granted || waitMs <= 0 || reading.stale || this.#closed) return;
      this.#denials.delete(name);
      this.#denials.set(name, { cost, limit, remaining, until: began + waitMs, resetAt: began + resetMs });
      for (const [oldest] of this.#denials) {
        if (this.#denials.size <= MOST_KEYS) break;
        this.#denials.delete(oldest);
      }
    } catch {
      // It is only not remembered. The next call asks the server.
    } finally {
      this.#reading.delete(name);
    }
  }

  /**
   * The connections for the node that has the key. Undefined if they were lost just now.
   *
   * @param {Call} call
   */
  async #tracker(call) {
    const node = this.#nodeName(call);
    const known = this.#trackers.get(node);
    if (known) return known;
    if (performance.now() < (this.#reopenAt.get(node) ?? 0)) return undefined;
    this.#reopenAt.set(node, performance.now() + REOPEN_MS);
    const opened = this.#track(call, this.#patienceMs, {
      changed: (key) => (key ? this.#forget(key.toString('latin1')) : this.#forgetAll()),
      lost: () => {
        if (this.#trackers.get(node) === opened) this.#trackers.delete(node);
        this.#forgetAll();
      },
    });
    this.#trackers.set(node, opened);
    try {
      const tracker = await opened;
      if (this.#closed) tracker.close();
      return tracker;
    } catch (error) {
      if (this.#trackers.get(node) === opened) this.#trackers.delete(node);
      throw error;
    }
  }

  /** @param {string} name */
  #forget(name) {
    this.#denials.delete(name);
    const reading = this.#reading.get(name);
    if (reading) reading.stale = true;
  }

  #forgetAll() {
    this.#denials.clear();
    for (const reading of this.#reading.values()) reading.stale = true;
  }

  /** Closes the connections. */
  async close() {
    this.#closed = true;
    this.#forgetAll();
    const trackers = await Promise.allSettled(this.#trackers.values());
    this.#trackers.clear();
    for (const tracker of trackers) if (tracker.status === 'fulfilled') tracker.value.close();
  }
}

/**
 * A limit whose denials are remembered. After a denial, calls for the same key with the same cost or a higher one are denied
 * in the process, without a call to the server, until the wait is over or the key changes. A lower cost is asked.
 */
export class CachedLimit {
  #limit;
  #denials;

  /**
   * @param {RateLimit} limit
   * @param {Denials} denials
   */
  constructor(limit, denials) {
    this.#limit = limit;
    this.#denials = denials;
  }

  /** How many keys are remembered, of all cached limits that share the connections. */
  get size() {
    return this.#denials.size;
  }

  /**
   * Takes units: all of them, or none.
   *
   * @param {Key} key
   * @param {number} [cost]
   * @returns {Promise<Decision>}
   */
  async take(key, cost = 1) {
    const word = this.#limit.keyOf(key);
    const name = Buffer.from(word).toString('latin1');
    const now = performance.now();
    const denial = this.#denials.find(name, checkedCost(cost), now);
    if (denial) {
      const { limit, remaining, until, resetAt } = denial;
      const { name, policy } = this.#limit;
      return new Decision(name, policy, [0, limit, remaining, Math.ceil(until - now), Math.ceil(Math.max(0, resetAt - now))]);
    }
    const decision = await this.#limit.take(key, cost);
    if (!decision.allowed && decision.waitMs) void this.#denials.remember(name, this.#limit.peekCall(word, cost), cost);
    return decision;
  }

  /**
   * Takes, and throws `RateLimited` if the call is denied.
   *
   * @param {Key} key
   * @param {{ cost?: number }} [options]
   */
  async protect(key, { cost = 1 } = {}) {
    return (await this.take(key, cost)).throwIfDenied();
  }
}
