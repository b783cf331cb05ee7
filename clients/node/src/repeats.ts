import { performance } from 'node:perf_hooks';
import { Decision } from './decision.js';
import { remember } from './local.js';

/** Denials of one limit that are repeated in the process for a short time, instead of asking the server. */
export class Repeats {
  readonly #denials = new Map<string, { cost: number; denied: Decision; at: number; until: number }>();
  /** How many times something was forgotten. */
  changes = 0;

  constructor(readonly mostMs: number) {}

  /** The last denial, if this call has the same cost and would get it again. A higher cost would be denied, too, but for longer. */
  find(key: string, cost: number) {
    const found = this.#denials.get(key);
    const now = performance.now();
    if (!found || cost !== found.cost || now >= found.until) return undefined;
    const { name, policy, limit, remaining, waitMs, resetMs } = found.denied;
    const passed = Math.floor(now - found.at);
    const row = [0, limit, remaining, Math.max(1, Number(waitMs) - passed), Math.max(0, resetMs - passed)];
    return new Decision(name, policy, row, 'repeated');
  }

  /** Remembers a denial, if nothing was forgotten since its call began. */
  add(key: string, cost: number, decision: Decision, changes: number) {
    if (changes !== this.changes || !this.mostMs || decision.allowed || !decision.waitMs || decision.source !== 'server') return;
    const at = performance.now();
    remember(this.#denials, key, { cost, denied: decision, at, until: at + Math.min(decision.waitMs, this.mostMs) });
  }

  forget(key: string) {
    this.changes++;
    this.#denials.delete(key);
  }
}
