import { performance } from 'node:perf_hooks';
import type { Gcra } from './policies.js';

/** What kind of call is decided without the server. `force`: one that takes or gives back in any case. */
export interface DownOptions {
  upTo?: boolean;
  peek?: boolean;
  force?: boolean;
}

const MOST_KEYS = 10_000;

/** Remembers a value as the one that was used last. The one that was not used for longest goes if there are too many. */
export function remember<V>(values: Map<string, V>, key: string, value: V) {
  values.delete(key);
  values.set(key, value);
  if (values.size > MOST_KEYS) values.delete(values.keys().next().value as string);
}

/**
 * A limiter in this process, for the time without a server: GCRA, in integers. It remembers 10 000 keys; the one that was not used
 * for longest goes first. Times are microseconds times the limit, so that they are whole.
 */
export class LocalLimiter {
  readonly #limit;
  readonly #periodUs;
  readonly #capacity;
  /** When each key would be full again. */
  readonly #full = new Map<string, bigint>();

  constructor({ limit, period, capacity }: Gcra) {
    this.#limit = BigInt(limit);
    this.#periodUs = period.us;
    this.#capacity = BigInt(capacity);
  }

  /** Takes units: all or none, or as many as fit; returns the five integers of a reply. */
  take(key: string, cost: number, { upTo = false, peek = false }: DownOptions = {}): number[] {
    if (!this.#limit) return [0, 0, 0, -1, 0];
    const now = BigInt(Math.round(performance.now() * 1000)) * this.#limit;
    const full = this.#full.get(key) ?? 0n;
    if (full) remember(this.#full, key, full);
    const used = full > now ? full - now : 0n;
    const free = (this.#capacity * this.#periodUs - used) / this.#periodUs;
    const asked = BigInt(cost);
    const granted = asked <= free ? asked : upTo ? free : 0n;
    const missing = (upTo ? 1n : asked) - this.#capacity;
    const wait = granted ? 0 : missing > 0n ? -1 : this.#ms(used + missing * this.#periodUs);
    const after = peek ? used : used + granted * this.#periodUs;
    if (granted && !peek) remember(this.#full, key, now + after);
    return [Number(granted), Number(this.#capacity), Number(peek ? free : free - granted), wait, this.#ms(after)];
  }

  #ms(time: bigint) {
    const unit = this.#limit * 1000n;
    return Number((time + unit - 1n) / unit);
  }
}
