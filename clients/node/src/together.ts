import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { Admission } from './blocks.js';
import { checkedId, costWords, nameOf, type Word } from './checks.js';
import type { Call } from './clients/client.js';
import { AllDecision, Decision, integersOfAll, RateLimited } from './decision.js';
import { type Time, waitMs } from './durations.js';
import { InvalidKey, Unavailable } from './errors.js';
import type { LeaseLimit, Limit } from './limit.js';
import type { Shared } from './shared.js';

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
    this.#leases = parts.filter((part): part is Part & { limit: LeaseLimit } => part.limit.policy.algorithm === 'LEASE');
  }

  /**
   * Takes the units, or waits for them in the lines of the keys. `takenAt`: when the call was sent by which they were taken. What a block
   * takes has an id, and leases always have one.
   */
  async take({ wait, id: given, signal }: BlockOptions, forBlock = false): Promise<{ decision: AllDecision; takenAt: number }> {
    const { shared } = this;
    const ms = waitMs(wait);
    /** This package makes the id. */
    const isOwn = given === undefined;
    const id = !isOwn ? checkedId(given) : forBlock || this.#leases.length ? randomUUID() : undefined;
    signal?.throwIfAborted();
    const call = this.#call();
    const { keys } = call;
    const waitId = id ?? randomUUID();
    let takenAt = performance.now();
    let [mayHold, blocked] = [id !== undefined, false];
    const onBlock = () => (mayHold = blocked = true);
    const isFinal = (reply: unknown) => {
      const { granted, waitMs } = this.#read(reply, id);
      return granted || waitMs === null;
    };
    const decide = async (leave: AbortSignal) => {
      let holds = false;
      try {
        const { reply, before } = await shared.servers.inLine(call, isFinal, { waitMs: ms, id, waitId, signal: leave, onBlock });
        const decision = this.#read(reply, id);
        holds = decision.granted;
        leave.throwIfAborted();
        if (holds && blocked && forBlock && this.#leases.length) {
          // Leases that were waited for are renewed, so that it is known when they end.
          takenAt = performance.now();
          await Promise.all(this.#leases.map(({ limit, key }) => limit.keepWord(key, waitId)));
        }
        if (holds && blocked && id === undefined) this.#forgetId(waitId, decision);
        // What the first call was charged on some of several keys would stay.
        if (!holds && before && mayHold && keys.length > 1) shared.giveBack(keys, waitId, isOwn);
        return decision;
      } catch (error) {
        const isUnknown = error instanceof Unavailable && (error.sent || holds);
        if (mayHold && (leave.aborted || (isOwn && isUnknown))) shared.giveBack(keys, waitId, isOwn);
        throw error;
      }
    };
    const ask = () => (ms > 0 ? shared.waiting(signal, decide) : decide(signal ?? new AbortController().signal));
    const decision = await shared.orDown(ask, () => this.#down(id));
    return { decision, takenAt };
  }

  #call(): Call {
    const [{ limit, key, cost }] = this.parts;
    if (this.parts.length === 1) return limit.call(key, costWords(cost));
    const keys = this.parts.map(({ key }) => key);
    const rules = this.parts.flatMap(({ limit: { policy }, cost }) => [policy.algorithm, ...policy.words(), ...costWords(cost)]);
    return { name: 'RL.ALL', args: [String(keys.length), ...keys, ...rules], keys };
  }

  #read(reply: unknown, id: string | undefined) {
    if (this.parts.length === 1) return this.#decided(this.parts.map(({ limit }) => limit.decided(reply)), id);
    const [granted, wait, rows] = integersOfAll(reply, this.parts.length);
    const decisions = this.parts.map(({ limit }, at) => new Decision(limit.name, limit.policy, rows[at]));
    return new AllDecision(granted > 0, wait, decisions, id);
  }

  /** Lets the keys forget an id, whose units stay charged. */
  #forgetId(id: string, { decisions }: AllDecision) {
    for (const [at, { key }] of this.parts.entries()) {
      const units = String(decisions[at].granted);
      this.shared.later(`a key remembers the id ${id} for longer`, () => this.shared.servers.end('RL.SETTLE', key, id, units));
    }
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
    options: BlockOptions,
    seen: (decision: AllDecision) => D,
    body: (block: Admission<D>) => T | Promise<T>,
  ): Promise<T> {
    const { decision, takenAt } = await this.take(options, true);
    const id = decision.id as string;
    if (!decision.granted) throw new RateLimited(seen(decision));
    const block = new Admission(id, seen(decision), options.signal);
    const known = decision.decisions[0].source !== 'down';
    if (known) {
      for (const lease of this.#leases) {
        block.keep(lease.limit, lease.key, takenAt, decision.decisions[this.parts.indexOf(lease)]);
      }
    }
    return block.run(body, async (failed) => {
      // They go to one server, on one connection, in this order.
      if (known) await Promise.all([...this.parts.entries()].reverse().map(([at, { limit, key, settles }]) => {
        const { granted } = decision.decisions[at];
        return limit.end(key, id, granted, settles ? (block.used ?? (failed ? 0 : granted)) : granted);
      }));
    });
  }
}
