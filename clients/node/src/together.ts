import { randomUUID } from 'node:crypto';
import { Admission } from './blocks.js';
import { checkedId, nameOf } from './checks.js';
import { AllDecision, Decision, integers, integersOfAll } from './decision.js';
import { type Time, waitMs } from './durations.js';
import { InvalidKey, RateLimited } from './errors.js';
import { costWords, LeaseLimit, type Limit } from './limit.js';
import type { Word } from './policies.js';
import type { Acquiring, Shared } from './shared.js';

/** A limit, its key on the server, and the units to take there. `settles`: they become what was used. */
export interface Part {
  limit: Limit;
  key: Word;
  cost: number;
  settles?: boolean;
}

/** How a block begins. The signal ends its wait, and aborts that of the block. */
export interface BlockOptions {
  wait?: Time;
  id?: string;
  signal?: AbortSignal;
}

/** A call that charges several limits or one, all or none. */
export class Together {
  readonly #leases: (Part & { limit: LeaseLimit })[];

  constructor(readonly shared: Shared, readonly parts: Part[]) {
    if (!parts.length) throw new InvalidKey('at least one limit is needed');
    if (new Set(parts.map(({ key }) => nameOf(key))).size < parts.length) throw new InvalidKey('two limits have the same key');
    this.#leases = parts.filter((part): part is Part & { limit: LeaseLimit } => part.limit instanceof LeaseLimit);
  }

  get hasLeases() {
    return this.#leases.length > 0;
  }

  /** Takes the units, or waits for them in the lines of the keys. */
  take(options: Acquiring): Promise<{ decision: AllDecision; takenAt: number }> {
    const keys = this.parts.map(({ key }) => key);
    const read = (reply: unknown) => {
      if (keys.length === 1) return this.#decided(this.parts.map(({ limit }) => limit.decided(reply)), options.id);
      const [granted, wait, rows] = integersOfAll(reply, keys.length);
      const decisions = this.parts.map(({ limit }, at) => new Decision(limit.name, limit.policy, integers(rows[at])));
      return new AllDecision(granted > 0, wait, decisions, options.id);
    };
    const rules = () => this.parts.flatMap(({ limit: { policy }, cost }) => [policy.algorithm, ...policy.words(), ...costWords(cost)]);
    const [{ limit, key, cost }] = this.parts;
    const one = keys.length === 1 && limit.call(key, costWords(cost));
    const call = one || { name: 'RL.ALL', args: [String(keys.length), ...keys, ...rules()], keys };
    return this.shared.acquire(call, options, read, () => this.#down(options.id));
  }

  /** What these decisions come to, if each limit has decided by itself. */
  #decided(decisions: Decision[], id: string | undefined) {
    const waits = decisions.map(({ waitMs }) => waitMs ?? Infinity);
    const longest = Math.max(...waits);
    return new AllDecision(decisions.every(({ allowed }) => allowed), longest === Infinity ? -1 : longest, decisions, id);
  }

  /** The decision without the server: each part by itself, all or none. */
  #down(id: string | undefined) {
    const seen = this.#decided(this.parts.map(({ limit, key, cost }) => limit.down(key, cost, { peek: true })), id);
    return seen.granted ? this.#decided(this.parts.map(({ limit, key, cost }) => limit.down(key, cost)), id) : seen;
  }

  /** Takes the units around a block of work. `seen` is what the program sees of the decision. */
  async around<D extends Decision | AllDecision, T>(
    { wait, id, signal }: BlockOptions,
    seen: (decision: AllDecision) => D,
    body: (block: Admission<D>) => T | Promise<T>,
  ): Promise<T> {
    const ms = waitMs(wait);
    const name = id === undefined ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const renew = this.hasLeases ? () => Promise.all(this.#leases.map(({ limit, key }) => limit.keepWord(key, name))) : undefined;
    const { decision, takenAt } = await this.take({ waitMs: ms, id: name, ownId: id === undefined, signal, renew });
    if (!decision.granted) throw new RateLimited(seen(decision));
    const block = new Admission(name, seen(decision), signal);
    const known = decision.decisions[0].source !== 'down';
    if (known) for (const { limit, key } of this.#leases) block.keep(limit, key, takenAt);
    return block.run(body, async (failed) => {
      // They go to one server, on one connection, in this order.
      if (known) await Promise.all([...this.parts.entries()].reverse().map(([at, { limit, key, settles }]) => {
        const { granted } = decision.decisions[at];
        return limit.end(key, name, granted, settles ? (block.used ?? (failed ? 0 : granted)) : granted);
      }));
    });
  }
}
