// What the bodies of `withCharge`, `withLease` and `withAdmission` get.
import { performance } from 'node:perf_hooks';
import { later } from './adapters/adapter.js';
import { checkedUsed } from './checks.js';
import { LeaseLost } from './errors.js';

/** @typedef {import('./decision.js').AllDecision} AllDecision */
/** @typedef {import('./decision.js').Decision} Decision */
/** @typedef {import('./limits.js').LeaseLimit} LeaseLimit */
/** @typedef {import('./policies.js').Word} Word */

/**
 * A charge that is settled when its body ends.
 *
 * @template {Decision | AllDecision} [D=Decision]
 */
export class Charge {
  /** @type {number | undefined} */
  #used;

  /**
   * @param {string} id
   * @param {D} decision
   */
  constructor(id, decision) {
    /** The id of the charge. */
    this.id = id;
    /** What the server decided about the estimate. */
    this.decision = decision;
  }

  /** The units that were really used: a whole number from 0; undefined if they are not known. */
  get used() {
    return this.#used;
  }

  set used(units) {
    this.#used = units === undefined ? undefined : checkedUsed(units);
  }
}

/** A lease that is held. */
export class Held {
  #limit;
  #key;
  #lapsesAt;
  #patienceMs;
  #aborter = new AbortController();
  #ended = new AbortController();
  #cancelRenewal = () => {};
  #cancelLapse = () => {};

  /**
   * @param {LeaseLimit} limit
   * @param {Word} key
   * @param {string} id
   * @param {Decision} decision
   * @param {number | undefined} takenAt when the call was sent; undefined if the lease may have begun earlier
   * @param {number} patienceMs
   * @param {AbortSignal} [signal]
   */
  constructor(limit, key, id, decision, takenAt, patienceMs, signal) {
    this.#limit = limit;
    this.#key = key;
    this.#patienceMs = patienceMs;
    /** The id of the lease. */
    this.id = id;
    /** What the server decided. */
    this.decision = decision;
    /**
     * Aborted when the lease is lost, or when the caller's signal is.
     *
     * @type {AbortSignal}
     */
    this.signal = this.#aborter.signal;
    const abort = () => this.#aborter.abort(signal?.reason);
    signal?.addEventListener('abort', abort, { signal: this.#ended.signal });
    if (signal?.aborted) abort();
    this.#lapsesAt = (takenAt ?? performance.now()) + limit.policy.period.ms;
    // If it is not known when the lease began, it is renewed at once: from then on it is.
    if (decision.counted) this.#schedule(takenAt === undefined ? 0 : limit.policy.period.ms / 3);
  }

  /** @param {number} pauseMs */
  #schedule(pauseMs) {
    this.#cancelLapse();
    this.#cancelLapse = later(this.#lapsesAt - performance.now(), () => this.#lost());
    this.#cancelRenewal = later(pauseMs, () => void this.#beat());
  }

  async #beat() {
    // The answer must come before the next renewal begins.
    const patienceMs = Math.max(1, Math.min(this.#patienceMs, this.#limit.policy.period.ms / 4));
    try {
      await this.renew(patienceMs);
    } catch {
      // Without an answer, the lease may still be held. The next renewal tries again, until the lease has lapsed.
      if (!this.signal.aborted && !this.#ended.signal.aborted) {
        this.#cancelRenewal = later(Math.min(1000, this.#limit.policy.period.ms / 12), () => void this.#beat());
      }
    }
  }

  /**
   * Renews the lease now. Throws `LeaseLost` if it is lost.
   *
   * @param {number} [patienceMs]
   */
  async renew(patienceMs) {
    this.signal.throwIfAborted();
    if (!this.decision.counted) return this.decision;
    const sentAt = performance.now();
    this.#cancelRenewal();
    const decision = await this.#limit.renewWord(this.#key, this.id, patienceMs);
    if (this.#ended.signal.aborted) return decision;
    if (!decision.granted) throw this.#lost();
    this.#lapsesAt = sentAt + this.#limit.policy.period.ms;
    this.#cancelRenewal();
    if (!this.signal.aborted) this.#schedule(this.#limit.policy.period.ms / 3);
    return decision;
  }

  #lost() {
    const error = new LeaseLost(this.#limit.name, this.id);
    this.#cancelRenewal();
    this.#cancelLapse();
    this.#aborter.abort(error);
    return error;
  }

  /** @internal */
  stop() {
    this.#ended.abort();
    this.#cancelRenewal();
    this.#cancelLapse();
  }
}

/**
 * The call that `withAdmission` has admitted.
 *
 * @extends {Charge<AllDecision>}
 */
export class Admission extends Charge {
  #held;
  #aborter = new AbortController();
  #ended = new AbortController();

  /**
   * @param {string} id
   * @param {AllDecision} decision
   * @param {Held[]} held
   * @param {AbortSignal} [signal]
   */
  constructor(id, decision, held, signal) {
    super(id, decision);
    this.#held = held;
    /**
     * Aborted when a lease is lost, or when the caller's signal is.
     *
     * @type {AbortSignal}
     */
    this.signal = this.#aborter.signal;
    for (const one of [signal, ...held.map(({ signal }) => signal)]) {
      const abort = () => this.#aborter.abort(one?.reason);
      one?.addEventListener('abort', abort, { signal: this.#ended.signal });
      if (one?.aborted) abort();
    }
  }

  /** @internal */
  stop() {
    this.#ended.abort();
    for (const one of this.#held) one.stop();
  }
}
