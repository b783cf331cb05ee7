import { randomUUID } from 'node:crypto';
import { Admission } from './blocks.js';
import { checkedBody, checkedCost, checkedId, nameOf } from './checks.js';
import { AllDecision, Decision, integersOfAll } from './decision.js';
import { optionMs, shown, waitMs } from './durations.js';
import { InvalidCost, InvalidKey, InvalidLimit, RateLimited } from './errors.js';
import { costWords, LeaseLimit, RateLimit } from './limit.js';
import { Lease, Policy } from './policies.js';
import { Shared } from './shared.js';
import { Wallet } from './wallet.js';

/** @import { Key } from './checks.js' */
/** @import { AnyClient } from './clients/client.js' */
/** @import { Limit, Time } from './limit.js' */
/** @import { Word } from './policies.js' */
/** @import { Acquiring, LimitsOptions } from './shared.js' */

/** A limit, a key, and perhaps a cost. @typedef {readonly [limit: RateLimit | LeaseLimit, key: Key, cost?: number]} Rule */

/** A rule with its key on the server. @typedef {{ limit: Limit, key: Word, cost: number }} Part */

const DAY_MS = 86_400_000;

/** Limits on one server, one cluster or behind one Sentinel. */
export class Limits {
  #shared;

  /** @param {AnyClient} client @param {LimitsOptions} [options] */
  constructor(client, options = {}) {
    this.#shared = new Shared(client, options);
  }

  /** How many calls were let through without the server. */
  get letThrough() {
    return this.#shared.letThrough;
  }

  /**
   * A limit with this name and policy.
   * @template {Policy} P
   * @param {string} name printable ASCII without a colon; it may contain a hash tag @param {P} policy
   * @returns {P extends Lease ? LeaseLimit : RateLimit}
   */
  limit(name, policy) {
    if (!(policy instanceof Policy)) {
      throw new InvalidLimit(`a policy is a Fixed, Slide, Gcra, Bucket or Lease, not ${shown(policy)}`);
    }
    if (typeof name !== 'string' || !/^[ -9;-~]+$/.test(name)) {
      throw new InvalidLimit(`the name of a limit is printable ASCII, not empty, and has no colon; not ${shown(name)}`);
    }
    const limit = policy instanceof Lease ? new LeaseLimit(this.#shared, name, policy) : new RateLimit(this.#shared, name, policy);
    return /** @type {P extends Lease ? LeaseLimit : RateLimit} */ (limit);
  }

  /**
   * Charges several limits, all or none. With an `id`, the call is repeated when the connection is lost, and each key is settled
   * or released by itself; a lease needs an id, which is made if it is omitted. In a cluster the keys need one hash tag.
   * @param {readonly Rule[]} rules @param {{ wait?: Time, id?: string, signal?: AbortSignal }} [options]
   * @returns {Promise<AllDecision>}
   */
  async all(rules, { wait, id, signal } = {}) {
    if (id !== undefined) checkedId(id);
    const parts = partsOf(rules.map(([limit, key, cost = 1]) => [limit, key, cost]));
    const ownId = id === undefined && parts.some(isLease) ? randomUUID() : undefined;
    const ms = waitMs(wait);
    signal?.throwIfAborted();
    return (await this.#charge(parts, { waitMs: ms, id: id ?? ownId, ownId: id === undefined, signal })).decision;
  }

  /** @param {Part[]} parts @param {Acquiring} options */
  #charge(parts, options) {
    const keys = parts.map(({ key }) => key);
    const rules = parts.flatMap(({ limit: { policy }, cost }) => [policy.algorithm, ...policy.words(), ...costWords(cost)]);
    const call = { name: 'RL.ALL', args: [String(keys.length), ...keys, ...rules], keys };
    return this.#shared.acquire(call, options, (reply) => {
      const [granted, wait, rows] = integersOfAll(reply, keys.length);
      return new AllDecision(granted > 0, wait, parts.map(({ limit }, at) => new Decision(limit.name, limit.policy, rows[at])), options.id);
    }, () => this.#down(parts, options.id));
  }

  /** The decision without the server: each rule by itself, all or none. @param {Part[]} parts @param {string | undefined} id */
  #down(parts, id) {
    const seen = parts.map(({ limit, key, cost }) => limit.down(key, cost, { peek: true }));
    const denied = seen.filter(({ allowed }) => !allowed);
    if (!denied.length) return new AllDecision(true, 0, parts.map(({ limit, key, cost }) => limit.down(key, cost)), id);
    const waits = denied.map(({ waitMs }) => waitMs ?? Infinity);
    return new AllDecision(false, waits.includes(Infinity) ? -1 : Math.max(...waits), seen, id);
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
   *
   * @template T @param {readonly Rule[]} rules
   * @param {{ estimate?: number, wait?: Time, id?: string, signal?: AbortSignal }} options
   * @param {(call: Admission<AllDecision>) => T | Promise<T>} body @returns {Promise<T>}
   */
  async admit(rules, { estimate, wait, id, signal }, body) {
    checkedBody(body);
    const parts = partsOf(rules.map(([limit, key, cost]) => {
      if (cost === undefined && estimate === undefined && limit instanceof RateLimit) {
        throw new InvalidCost('a rule without a cost needs an estimate');
      }
      return [limit, key, cost ?? (limit instanceof LeaseLimit ? 1 : Number(estimate))];
    }));
    const ms = waitMs(wait);
    const name = id === undefined ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const leases = parts.filter(isLease);
    const { decision, takenAt } = await this.#charge(parts, {
      waitMs: ms, id: name, ownId: id === undefined, signal,
      renew: () => Promise.all(leases.map(({ limit, key }) => /** @type {LeaseLimit} */ (limit).keepWord(key, name))),
    });
    if (!decision.granted) throw new RateLimited(decision);
    const call = new Admission(name, decision, signal);
    const known = decision.decisions[0].source !== 'down';
    if (known) for (const { limit, key } of leases) call.keep(/** @type {LeaseLimit} */ (limit), key, takenAt);
    return call.run(body, async (failed) => {
      // They go to one server, on one connection, in this order.
      if (known) await Promise.all([...parts.entries()].reverse().map(([at, { limit, key }]) => {
        const { granted } = decision.decisions[at];
        const used = rules[at][2] !== undefined ? granted : (call.used ?? (failed ? 0 : granted));
        return limit.end(key, name, granted, used);
      }));
    });
  }

  /**
   * The limit with units that are fetched in batches, and spent in the process. What is left of a batch is given back when nothing
   * was granted for `idle` seconds.
   * @param {RateLimit} limit @param {{ batch?: number, idle?: Time }} [options]
   */
  wallet(limit, { batch = 100, idle = 1 } = {}) {
    if (!(limit instanceof RateLimit)) throw new InvalidLimit('only a limit of a rate can have a wallet');
    const wallet = new Wallet(limit, this.#shared, checkedCost(batch), optionMs(idle, 'idle', 1, DAY_MS));
    this.#shared.wallets.add(wallet);
    return wallet;
  }

  /**
   * Ends the calls that wait, with `Closed`, gives back what is left in wallets, and closes the connections of this package. Calls
   * after this throw `Closed`. It does not close the client.
   */
  async close() {
    await this.#shared.close();
  }
}

/** @param {Part} part */
const isLease = ({ limit }) => limit instanceof LeaseLimit;

/** @param {[limit: RateLimit | LeaseLimit, key: Key, cost: number][]} rules @returns {Part[]} */
function partsOf(rules) {
  if (!rules.length) throw new InvalidKey('at least one limit is needed');
  const parts = rules.map(([limit, key, cost]) => ({ limit, key: limit.keyOf(key), cost: checkedCost(cost) }));
  if (new Set(parts.map(({ key }) => nameOf(key))).size < parts.length) throw new InvalidKey('two limits have the same key');
  return parts;
}
