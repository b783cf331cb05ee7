// What the bodies of `charge`, `admit` and `hold` get.
import { performance } from 'node:perf_hooks';
import { checkedUsed } from './checks.js';
import { later } from './clock.js';
import { LeaseLost, Unavailable } from './errors.js';

/** @import { AllDecision, Decision } from './decision.js' */
/** @import { LeaseLimit } from './limit.js' */
/** @import { Word } from './policies.js' */

/** A block of work. @template {Decision | AllDecision} D */
class Block {
  #aborter = new AbortController();
  #ended = new AbortController();
  /** @type {Keeper[]} */
  #leases = [];

  /** @param {string | undefined} id @param {D} decision @param {AbortSignal} [signal] of the caller */
  constructor(id, decision, signal) {
    /** The id of what is charged or held. */
    this.id = id;
    /** What was decided. */
    this.decision = decision;
    const abort = () => this.#aborter.abort(signal?.reason);
    signal?.addEventListener('abort', abort, { signal: this.#ended.signal });
    if (signal?.aborted) abort();
  }

  /**
   * Aborted when a lease is lost, or when the caller's signal is: pass it on to what the body calls.
   * @returns {AbortSignal}
   */
  get signal() {
    for (const lease of this.#leases) lease.look();
    return this.#aborter.signal;
  }

  /**
   * Keeps a lease while the body runs.
   * @param {LeaseLimit} limit @param {Word} key @param {number} takenAt when the call was sent by which it was taken @internal
   */
  keep(limit, key, takenAt) {
    this.#leases.push(new Keeper(limit, key, String(this.id), takenAt, (error) => this.#aborter.abort(error)));
  }

  /** @protected */
  throwIfLost() {
    for (const lease of this.#leases) lease.look();
    const { aborted, reason } = this.#aborter.signal;
    if (aborted && reason instanceof LeaseLost) throw reason;
  }

  /**
   * Runs the body, and then `finish`, which gets whether the body has failed.
   * @template T @param {(block: this) => T | Promise<T>} body @param {(failed: boolean) => Promise<unknown>} finish
   * @returns {Promise<T>} @internal
   */
  async run(body, finish) {
    let failed = true;
    try {
      const result = await body(this);
      failed = false;
      this.signal.throwIfAborted();
      return result;
    } catch (error) {
      throw this.signal.aborted ? this.signal.reason : error;
    } finally {
      this.#ended.abort();
      for (const lease of this.#leases) lease.stop();
      await finish(failed);
    }
  }
}

/** A charge that is settled when its body ends. @template {Decision | AllDecision} [D=Decision] @extends {Block<D>} */
export class Charge extends Block {
  /** @type {number | undefined} */
  #used;

  /** The units that were really used: a whole number from 0; undefined if they are not known. */
  get used() {
    return this.#used;
  }

  set used(units) {
    this.#used = units === undefined ? undefined : checkedUsed(units);
  }
}

/** What `admit` has admitted. @template {Decision | AllDecision} [D=Decision] @extends {Charge<D>} */
export class Admission extends Charge {
  /** What was decided, for each limit. @returns {readonly Decision[]} */
  get decisions() {
    const decision = /** @type {Decision | AllDecision} */ (this.decision);
    return 'decisions' in decision ? decision.decisions : [decision];
  }

  /** Throws `LeaseLost` if a lease has ended. */
  check() {
    this.throwIfLost();
  }
}

/** A lease that is held. @extends {Block<Decision>} */
export class Held extends Block {
  /** Throws `LeaseLost` if the lease has ended. */
  check() {
    this.throwIfLost();
  }
}

/** Renews a lease. It is lost when its time is over by this process's own clock, or when the server does not know it any more. */
class Keeper {
  /** @type {LeaseLimit} */
  #limit;
  /** @type {Word} */
  #key;
  /** @type {string} */
  #id;
  /** @type {(error: LeaseLost) => void} */
  #lose;
  #ttlMs;
  #endsAt;
  #done = false;
  #cancelRenewal = () => {};
  #cancelEnd = () => {};

  /**
   * @param {LeaseLimit} limit @param {Word} key @param {string} id @param {number} takenAt
   * @param {(error: LeaseLost) => void} lose
   */
  constructor(limit, key, id, takenAt, lose) {
    [this.#limit, this.#key, this.#id, this.#lose] = [limit, key, id, lose];
    this.#ttlMs = limit.policy.period.ms;
    this.#endsAt = takenAt + this.#ttlMs;
    this.#schedule(takenAt + this.#ttlMs / 3);
  }

  /** @param {number} renewAt */
  #schedule(renewAt) {
    this.stop();
    this.#done = false;
    const now = performance.now();
    this.#cancelEnd = later(this.#endsAt - now, () => this.look());
    this.#cancelRenewal = later(renewAt - now, () => void this.#renew());
  }

  async #renew() {
    const sentAt = performance.now();
    try {
      const { granted } = await this.#limit.renewWord(this.#key, this.#id, this.#ttlMs / 4);
      this.look();
      if (this.#done) return;
      if (!granted) return this.#lost();
      this.#endsAt = sentAt + this.#ttlMs;
      this.#schedule(sentAt + this.#ttlMs / 3);
    } catch (error) {
      // Without an answer, the lease may still be held. It is renewed again until its time is over.
      if (!(error instanceof Unavailable)) return this.#lost(error);
      if (!this.#done) this.#cancelRenewal = later(Math.min(1000, this.#ttlMs / 12), () => void this.#renew());
    }
  }

  /** Whether the time of the lease is over. A timer may be late, because the loop of events was busy. */
  look() {
    if (!this.#done && performance.now() >= this.#endsAt) this.#lost();
  }

  /** @param {unknown} [cause] */
  #lost(cause) {
    if (this.#done) return;
    this.stop();
    this.#lose(new LeaseLost(`the lease ${this.#id} of ${this.#limit.name} is lost`, { cause }));
  }

  stop() {
    this.#done = true;
    this.#cancelRenewal();
    this.#cancelEnd();
  }
}
