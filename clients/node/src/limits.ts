import type { Admission } from './blocks.js';
import { checkedBody, checkedCost, type Key } from './checks.js';
import type { AnyClient } from './clients/any.js';
import type { AllDecision } from './decision.js';
import { DAY_MS, optionMs, shown, type Time } from './durations.js';
import { InvalidCost, InvalidLimit } from './errors.js';
import { LeaseLimit, RateLimit } from './limit.js';
import { type Lease, type Named, Policy, stated } from './policies.js';
import { type LimitsOptions, Shared } from './shared.js';
import { type BlockOptions, Together } from './together.js';
import { Wallet } from './wallet.js';

/** A limit, a key, and perhaps a cost. */
export type Rule = readonly [limit: RateLimit | LeaseLimit, key: Key, cost?: number];

/** Limits on one server, one cluster or behind one Sentinel. */
export class Limits {
  readonly #shared;

  constructor(client: AnyClient, options: LimitsOptions = {}) {
    this.#shared = new Shared(client, options);
  }

  /** How many calls were let through without the server. */
  get letThrough(): number {
    return this.#shared.letThrough;
  }

  /** A limit with this name and policy. The name is printable ASCII without a colon; it may contain a hash tag. */
  limit<P extends Policy>(name: string, policy: P): P extends Lease | Named<Lease> ? LeaseLimit : RateLimit {
    if (!(policy instanceof Policy)) {
      throw new InvalidLimit(`a policy is a Fixed, Slide, Gcra, Bucket, Lease or Named, not ${shown(policy)}`);
    }
    if (typeof name !== 'string' || !/^[ -9;-~]+$/.test(name)) {
      throw new InvalidLimit(`the name of a limit is printable ASCII, not empty, and has no colon; not ${shown(name)}`);
    }
    const kind = policy.algorithm === 'LEASE' ? LeaseLimit : RateLimit;
    return new kind(this.#shared, name, policy) as P extends Lease | Named<Lease> ? LeaseLimit : RateLimit;
  }

  /**
   * Charges several limits, all or none. With an `id`, the call is repeated when the connection is lost, and each key is settled
   * or released by itself; a lease needs an id, which is made if it is omitted. In a cluster the keys need one hash tag.
   */
  async all(rules: readonly Rule[], options: BlockOptions = {}): Promise<AllDecision> {
    return (await this.#together(rules, 1).take(options)).decision;
  }

  /**
   * Charges several limits, all or none, around a block of work. A rule of a rate without a cost is charged the estimate, and
   * settled to `call.used`. A rule with a cost stays charged. A lease is renewed at each third of its ttl, and released at the end.
   *
   * | `body` | rules without a cost | rules with a cost |
   * |---|---|---|
   * | sets `used`, and ends in any way | what was used | the cost |
   * | returns without `used` | the estimate | the cost |
   * | throws without `used` | nothing | the cost |
   *
   * If a lease is lost, or the signal is aborted, `call.signal` is aborted: pass it on to what the body calls. Then `admit` throws
   * `LeaseLost`, or the signal's reason, also if the body returns normally. The rules are settled in reverse order: list leases
   * first, so that they are released last.
   */
  async admit<T>(
    rules: readonly Rule[],
    { estimate, ...options }: BlockOptions & { estimate?: number },
    body: (call: Admission<AllDecision>) => T | Promise<T>,
  ): Promise<T> {
    checkedBody(body);
    return this.#together(rules, estimate).around(options, (decision) => decision, body);
  }

  #together(rules: readonly Rule[], estimate: number | undefined) {
    return new Together(this.#shared, rules.map(([limit, key, cost]) => {
      stated(limit.policy);
      const settles = cost === undefined && limit instanceof RateLimit;
      if (settles && estimate === undefined) throw new InvalidCost('a rule without a cost needs an estimate');
      return { limit, key: limit.keyOf(key), cost: checkedCost(cost ?? (settles ? estimate : 1)), settles };
    }));
  }

  /**
   * The limit with units that are fetched in batches, and spent in the process. What is left of a batch is given back when nothing
   * was granted for `idle` seconds.
   */
  wallet(limit: RateLimit, { batch = 100, idle = 1 }: { batch?: number; idle?: Time } = {}): Wallet {
    if (!(limit instanceof RateLimit)) throw new InvalidLimit('only a limit of a rate can have a wallet');
    const wallet = new Wallet(limit, checkedCost(batch), optionMs(idle, 'idle', 1, DAY_MS));
    this.#shared.wallets.add(wallet);
    return wallet;
  }

  /**
   * Ends the calls that wait, with `Closed`, gives back what is left in wallets, and closes the connections of this package. Calls
   * after this throw `Closed`. It does not close the client.
   */
  async close(): Promise<void> {
    await this.#shared.close();
  }
}
