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

  /** Keeps a lease while the body runs. It was taken by a call that was sent at `takenAt`, with this decision. @internal */
  keep(limit: LeaseLimit, key: Word, takenAt: number, decision: Decision) {
    const lose = (error: LeaseLost) => this.#aborter.abort(error);
    this.#leases.push(new Keeper(limit, key, String(this.id), takenAt, decision, lose));
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
  #lastsMs = 0;
  #endsAt = 0;
  #done = false;
  #cancelRenewal = () => {};
  #cancelEnd = () => {};

  constructor(
    readonly limit: LeaseLimit,
    readonly key: Word,
    readonly id: string,
    takenAt: number,
    decision: Decision,
    readonly lose: (error: LeaseLost) => void,
  ) {
    this.#granted(decision, takenAt);
  }

  /**
   * A call that was sent at `sentAt` was granted. The lease lasts for the ttl, and that of a policy key may be shorter than the
   * default's: the key holds no lease any more after `resetMs`. If that is 0, the call was granted by SHADOW, and holds none.
   */
  #granted({ resetMs }: Decision, sentAt: number) {
    this.stop();
    this.#done = false;
    this.#lastsMs = Math.min(this.limit.policy.period.ms, resetMs || Infinity);
    this.#endsAt = sentAt + this.#lastsMs;
    const now = performance.now();
    this.#cancelEnd = later(this.#endsAt - now, () => this.look());
    this.#cancelRenewal = later(sentAt + this.#lastsMs / 3 - now, () => void this.#renew());
  }

  async #renew() {
    const sentAt = performance.now();
    try {
      const decision = await this.limit.renewWord(this.key, this.id, this.#lastsMs / 4);
      this.look();
      if (this.#done) return;
      if (!decision.granted) return this.#lost();
      this.#granted(decision, sentAt);
    } catch (error) {
      // Without an answer, the lease may still be held. It is renewed again until its time is over.
      if (!(error instanceof Unavailable)) return this.#lost(error);
      if (!this.#done) this.#cancelRenewal = later(Math.min(1000, this.#lastsMs / 12), () => void this.#renew());
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
