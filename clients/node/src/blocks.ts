// What the bodies of `charge`, `admit` and `hold` get.
import { performance } from 'node:perf_hooks';
import { checkedUsed, type Word } from './checks.js';
import { follow, later } from './clock.js';
import { type AllDecision, type Decision, eachOf } from './decision.js';
import { LeaseLost, Unavailable } from './errors.js';
import type { LeaseLimit } from './limit.js';

/** A block of work: what it was charged is settled when its body ends, and leases are renewed until then. */
export class Admission<D extends Decision | AllDecision = Decision> {
  #aborter = new AbortController();
  #ended = new AbortController();
  #leases: Keeper[] = [];
  #used?: number;

  constructor(
    /** The id of what is charged or held. */
    readonly id: string | undefined,
    /** What was decided. */
    readonly decision: D,
    signal?: AbortSignal,
  ) {
    follow(signal, this.#aborter, this.#ended.signal);
  }

  /** What was decided, for each limit. */
  get decisions(): readonly Decision[] {
    return eachOf(this.decision);
  }

  /** The units that were really used: a whole number from 0; undefined if they are not known. */
  get used(): number | undefined {
    return this.#used;
  }

  set used(units: number | undefined) {
    this.#used = units === undefined ? undefined : checkedUsed(units);
  }

  /** Aborted when a lease is lost, or when the caller's signal is: pass it on to what the body calls. */
  get signal(): AbortSignal {
    for (const lease of this.#leases) lease.look();
    return this.#aborter.signal;
  }

  /** Throws `LeaseLost` if a lease has ended. */
  check(): void {
    const { aborted, reason } = this.signal;
    if (aborted && reason instanceof LeaseLost) throw reason;
  }

  /** Keeps a lease while the body runs. It was taken by a call that was sent at `takenAt`. @internal */
  keep(limit: LeaseLimit, key: Word, takenAt: number) {
    this.#leases.push(new Keeper(limit, key, String(this.id), takenAt, (error) => this.#aborter.abort(error)));
  }

  /** Runs the body, and then `finish`, which gets whether the body has failed. @internal */
  async run<T>(body: (block: this) => T | Promise<T>, finish: (failed: boolean) => Promise<unknown>): Promise<T> {
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

export { Admission as Charge, Admission as Held };

/** Renews a lease. It is lost when its time is over by this process's own clock, or when the server does not know it any more. */
class Keeper {
  readonly #ttlMs;
  #endsAt;
  #done = false;
  #cancelRenewal = () => {};
  #cancelEnd = () => {};

  constructor(
    readonly limit: LeaseLimit,
    readonly key: Word,
    readonly id: string,
    takenAt: number,
    readonly lose: (error: LeaseLost) => void,
  ) {
    this.#ttlMs = limit.policy.period.ms;
    this.#endsAt = takenAt + this.#ttlMs;
    this.#schedule(takenAt + this.#ttlMs / 3);
  }

  #schedule(renewAt: number) {
    this.stop();
    this.#done = false;
    const now = performance.now();
    this.#cancelEnd = later(this.#endsAt - now, () => this.look());
    this.#cancelRenewal = later(renewAt - now, () => void this.#renew());
  }

  async #renew() {
    const sentAt = performance.now();
    try {
      const { granted } = await this.limit.renewWord(this.key, this.id, this.#ttlMs / 4);
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

  #lost(cause?: unknown) {
    if (this.#done) return;
    this.stop();
    this.lose(new LeaseLost(`the lease ${this.id} of ${this.limit.name} is lost`, { cause }));
  }

  stop() {
    this.#done = true;
    this.#cancelRenewal();
    this.#cancelEnd();
  }
}
