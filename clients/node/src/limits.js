import { Buffer } from 'node:buffer';
import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { later, slotOf, textIn } from './adapters/adapter.js';
import { adapterOf } from './adapters/index.js';
import { Caller, mayHaveRun } from './caller.js';
import { Admission, Charge, Held } from './charges.js';
import { checkedCost, checkedId, checkedUsed } from './checks.js';
import { AllDecision, Decision, inShort, integer, integers } from './decision.js';
import { CachedLimit, Denials } from './denials.js';
import { shown, waitMs } from './durations.js';
import { Down, InvalidCost, InvalidKey, InvalidLimit, InvalidWait, RateLimited, UnexpectedReply } from './errors.js';
import { Fixed, Lease, Policy } from './policies.js';
import { Wallet } from './wallet.js';

/** @typedef {import('./adapters/adapter.js').Call} Call */
/** @typedef {import('./adapters/adapter.js').Adapter} Adapter */
/** @typedef {import('./adapters/index.js').Client} Client */
/** @typedef {import('./caller.js').Answer} Answer */
/** @typedef {import('./policies.js').Word} Word */
/** @typedef {string | Uint8Array} Key text or bytes, not empty */

/**
 * A duration: a number of seconds, or text such as `30s`.
 *
 * @typedef {number | string} Time
 */

/**
 * @typedef {object} LimitsOptions
 * @property {string} [prefix] what each key on the server begins with
 * @property {'closed' | 'open'} [onDown] what happens if the server gives no decision: `closed`, the default, throws `Down`;
 *     `open` lets the call through, uncounted
 * @property {number} [patience] seconds: how long a call waits for its reply, and how long a call with an id is repeated. 1
 *     if omitted
 * @property {boolean} [peekReplica] whether replicas may answer `peek`, if the client is set up for it
 * @property {(message: string, error: unknown) => void} [log] the default is `console.warn`
 */

const LOG_PAUSE_MS = 1000;

/** The pauses before what an id may hold is given back once more. */
const GIVE_BACK_PAUSES_MS = [100, 900];

/** Takes a unit in a window that begins now, and that keeps what is counted in the present one. */
const NEW_WINDOW = `
local now = redis.call('RL.PEEK', 'FIXED', KEYS[1], unpack(ARGV))
redis.call('DEL', KEYS[1])
return redis.call('RL.FIXED', KEYS[1], ARGV[1], ARGV[2], 'COST', now[2] - now[3] + 1)
`;

/** What the limits of one `Limits` share. */
export class Shared {
  /**
   * @param {Client} client
   * @param {LimitsOptions} options
   */
  constructor(client, { prefix = '', onDown = 'closed', patience = 1, peekReplica = false, log = warn }) {
    if (typeof prefix !== 'string') throw new InvalidLimit(`prefix must be text, not ${shown(prefix)}`);
    if (onDown !== 'closed' && onDown !== 'open') throw new TypeError(`onDown must be 'closed' or 'open', not ${shown(onDown)}`);
    if (!(patience > 0 && patience <= 86_400)) throw new TypeError(`patience must be seconds, above 0, not ${shown(patience)}`);
    this.adapter = adapterOf(client);
    this.patienceMs = patience * 1000;
    this.caller = new Caller(this.adapter, this.patienceMs);
    this.prefix = prefix;
    this.open = onDown === 'open';
    this.peekReplica = peekReplica;
    this.log = log;
    /** @type {Set<Promise<void>>} */
    this.background = new Set();
    /** @type {Set<() => void>} ends the pauses in the background */
    this.pauses = new Set();
    this.hurrying = 0;
    /** @type {Set<{ leaver: AbortController, ended: Promise<unknown> }>} the calls that may wait */
    this.waits = new Set();
    this.loggedAt = -Infinity;
  }

  /**
   * What a call returns, or, if the server gave no decision and the calls are let through then, what `uncounted` returns.
   *
   * @template T
   * @param {Promise<T>} decision
   * @param {() => T} uncounted
   * @returns {Promise<T>}
   */
  async orOpen(decision, uncounted) {
    try {
      return await decision;
    } catch (error) {
      if (!this.open || !(error instanceof Down) || error instanceof Closed) throw error;
      if (performance.now() - this.loggedAt >= LOG_PAUSE_MS) {
        this.loggedAt = performance.now();
        this.log('redis-rl: calls go on uncounted, because the server gives no decision', error);
      }
      return uncounted();
    }
  }

  /**
   * Does something that no caller waits for. Its errors are logged.
   *
   * @param {string} what
   * @param {() => Promise<unknown>} action
   */
  later(what, action) {
    const task = (async () => {
      try {
        await action();
      } catch (error) {
        this.log(`redis-rl: ${what}`, error);
      }
    })();
    this.background.add(task);
    void task.finally(() => this.background.delete(task));
  }

  /** Waits until nothing is under way in the background. What is there pauses no more. */
  async idle() {
    this.hurrying++;
    for (const end of this.pauses) end();
    try {
      while (this.background.size) await Promise.all(this.background);
    } finally {
      this.hurrying--;
    }
  }

  /**
   * Pauses in the background. The timer keeps the process until then.
   *
   * @param {number} ms
   */
  async pause(ms) {
    if (this.hurrying) return;
    await new Promise((resolve) => {
      const end = () => {
        cancel();
        this.pauses.delete(end);
        resolve(undefined);
      };
      const cancel = later(ms, end);
      this.pauses.add(end);
    });
  }

  /**
   * Gives back what an id holds on these keys. If the server does not know the id, the call itself may still be on its way to
   * the server, on a connection of its own: then it is given back again a little later, and once more. Not so with an id of
   * the program, because the program may use it again.
   *
   * @param {Word[]} keys
   * @param {string} id
   * @param {boolean} ownId whether this package has made the id
   */
  giveBack(keys, id, ownId) {
    for (const key of keys) {
      const call = { name: 'RL.RELEASE', args: [key, id], keys: [key] };
      this.later(`what ${id} has charged was not given back`, async () => {
        const { reply } = await this.caller.send(call, { repeat: true });
        if (reply !== null || !ownId) return;
        for (const ms of GIVE_BACK_PAUSES_MS) {
          await this.pause(ms);
          try {
            if ((await this.caller.send(call)).reply !== null) return;
          } catch {
            // Most likely, nothing was charged, and the program has closed the client meanwhile.
          }
        }
      });
    }
  }

  /**
   * Runs a call that may wait. The caller's signal ends it, and so does `endWaits`.
   *
   * @template T
   * @param {AbortSignal | undefined} signal
   * @param {(signal: AbortSignal) => Promise<T>} action
   * @returns {Promise<T>}
   */
  async waiting(signal, action) {
    const leaver = new AbortController();
    const abort = () => leaver.abort(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort);
    const ended = action(leaver.signal);
    const wait = { leaver, ended };
    this.waits.add(wait);
    try {
      return await ended;
    } finally {
      this.waits.delete(wait);
      signal?.removeEventListener('abort', abort);
    }
  }

  /** Ends the calls that wait. */
  async endWaits() {
    const waits = [...this.waits];
    for (const { leaver } of waits) leaver.abort(new Closed('the Limits was closed'));
    await Promise.allSettled(waits.map(({ ended }) => ended));
  }
}

/** A wait has ended because its `Limits` was closed. The server is not down, so such a call is never let through. */
class Closed extends Down {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'Down';
  }
}

/**
 * @param {RateLimit} limit
 * @returns {RateLimit}
 */
function rateOf(limit) {
  if (limit instanceof RateLimit) return limit;
  throw new TypeError('only a limit of a rate can be cached, or have a wallet');
}

/**
 * @param {string} message
 * @param {unknown} error
 */
function warn(message, error) {
  if (error === undefined) console.warn(message);
  else console.warn(`${message}: ${error instanceof Error ? error.message : error}`);
}

/** Limits on one server, one cluster or behind one Sentinel. */
export class Limits {
  #shared;
  /** @type {Denials | undefined} */
  #denials;
  /** @type {Wallet[]} */
  #wallets = [];

  /**
   * @param {Client} client a client of ioredis, node-redis or valkey-glide; it may be shared with the rest of the program
   * @param {LimitsOptions} [options]
   */
  constructor(client, options = {}) {
    this.#shared = new Shared(client, options);
  }

  /**
   * A limit with this name and policy.
   *
   * @template {Policy} P
   * @param {string} name printable ASCII; it may contain a hash tag
   * @param {P} policy
   * @returns {P extends Lease ? LeaseLimit : RateLimit}
   */
  limit(name, policy) {
    if (!(policy instanceof Policy)) {
      throw new InvalidLimit(`a policy is a Fixed, Slide, Gcra, Bucket or Lease, not ${shown(policy)}`);
    }
    if (typeof name !== 'string' || !/^[ -~]+$/.test(name)) {
      throw new InvalidLimit(`the name of a limit is printable ASCII, and not empty; not ${shown(name)}`);
    }
    const limit = policy instanceof Lease ? new LeaseLimit(this.#shared, name, policy) : new RateLimit(this.#shared, name, policy);
    return /** @type {P extends Lease ? LeaseLimit : RateLimit} */ (limit);
  }

  /**
   * Charges several limits, all or none. With an `id`, the call is repeated when no reply comes, and each key is settled or
   * released by itself; a lease needs an id, which is made if it is omitted. In a cluster the keys need one hash tag.
   *
   * @param {readonly (readonly [limit: Limit, key: Key, cost?: number])[]} rules
   * @param {{ wait?: Time, id?: string, signal?: AbortSignal }} [options]
   * @returns {Promise<AllDecision>}
   */
  async all(rules, { wait, id, signal } = {}) {
    const needsId = signal !== undefined || rules.some(([limit]) => limit.policy instanceof Lease);
    const ownId = id === undefined && needsId;
    return this.#charge(rules, { wait, id: ownId ? randomUUID() : id, ownId, signal });
  }

  /**
   * @param {readonly (readonly [limit: Limit, key: Key, cost?: number])[]} rules
   * @param {{ wait?: Time, id?: string, ownId: boolean, signal?: AbortSignal }} options
   * @returns {Promise<AllDecision>}
   */
  async #charge(rules, { wait, id, ownId, signal }) {
    if (!rules.length) throw new InvalidKey('at least one limit is needed');
    const parts = rules.map(([limit, key, cost = 1]) => ({ limit, key: limit.keyOf(key), cost: checkedCost(cost) }));
    const keys = parts.map(({ key }) => key);
    if (new Set(keys.map((key) => Buffer.from(key).toString('latin1'))).size < keys.length) {
      throw new InvalidKey('two limits have the same key');
    }
    if (id !== undefined) checkedId(id);
    const milliseconds = waitMs(wait);
    const words = [String(keys.length), ...keys, ...parts.flatMap(({ limit: { policy }, cost }) => {
      return [policy.algorithm, ...policy.words(), ...(cost === 1 ? [] : ['COST', String(cost)])];
    })];
    if (id !== undefined) words.push('ID', id);
    /** @param {string[]} block @returns {Call} */
    const makeCall = (block) => ({ name: 'RL.ALL', args: [...words, ...block], keys });
    const isFinal = (/** @type {unknown} */ reply) => {
      const [granted, wait] = integersOfAll(reply, keys.length);
      return granted > 0 || wait < 0;
    };

    const decide = async (/** @type {AbortSignal | undefined} */ leave) => {
      /** @type {Answer} */
      let answer;
      try {
        const repeat = id !== undefined;
        answer = await this.#shared.caller.inLine(makeCall, isFinal, { waitMs: milliseconds, repeat, signal: leave });
      } catch (error) {
        if (id !== undefined && (leave?.aborted || (ownId && mayHaveRun(error)))) this.#shared.giveBack(keys, id, ownId);
        throw error;
      }
      const [granted, wait, rows] = integersOfAll(answer.reply, keys.length);
      const decisions = parts.map(({ limit }, at) => new Decision(limit.name, limit.policy, rows[at]));
      // What the first call was charged on some of the keys would stay.
      if (!granted && answer.before && id !== undefined) this.#shared.giveBack(keys, id, ownId);
      return this.#granted(new AllDecision(granted > 0, wait, decisions, id), keys, ownId, signal);
    };
    return this.#shared.orOpen(milliseconds > 0 ? this.#shared.waiting(signal, decide) : decide(signal), () => {
      return new AllDecision(true, 0, parts.map(({ limit, cost }) => limit.uncounted(cost)), id, false);
    });
  }

  /**
   * @param {AllDecision} decision
   * @param {Word[]} keys
   * @param {boolean} ownId
   * @param {AbortSignal} [signal]
   */
  #granted(decision, keys, ownId, signal) {
    if (signal?.aborted) {
      if (decision.granted && decision.id !== undefined) this.#shared.giveBack(keys, decision.id, ownId);
      throw signal.reason;
    }
    return decision;
  }

  /**
   * Admits a call that several limits decide about: charges all of them or none, runs `body`, and settles them. A rule of a
   * rate without a cost is charged the estimate, and settled to `call.used`. A rule with a cost is a fixed price. A lease is
   * renewed at each third of its ttl, and released at the end.
   *
   * | `body` | rules without a cost | rules with a cost |
   * |---|---|---|
   * | sets `used`, and returns or throws | what was used | the cost |
   * | returns without `used` | the estimate | the cost |
   * | throws without `used` | nothing | nothing |
   *
   * If a lease is lost, or the signal is aborted, `call.signal` is aborted: pass it on to what the body calls. Then
   * `withAdmission` throws `LeaseLost`, or the signal's reason, also if the body returns normally. The rules are settled in
   * reverse order: list leases first, so that they are released last.
   *
   * @template T
   * @param {readonly (readonly [limit: Limit, key: Key, cost?: number])[]} rules
   * @param {{ estimate?: number, wait?: Time, id?: string, signal?: AbortSignal }} options
   * @param {(call: Admission) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async withAdmission(rules, { estimate, wait, id, signal }, body) {
    if (typeof body !== 'function') throw new TypeError('the options, which may be {}, and then a function are needed');
    const ownId = id === undefined;
    const name = ownId ? randomUUID() : checkedId(id);
    /** @type {[Limit, Key, number][]} */
    const priced = rules.map(([limit, key, cost]) => {
      return [limit, key, cost ?? (limit instanceof LeaseLimit ? 1 : checkedEstimate(estimate))];
    });
    signal?.throwIfAborted();
    const sentAt = ownId && !waitMs(wait) ? performance.now() : undefined;
    const decision = await this.#charge(priced, { wait, id: name, ownId, signal });
    if (!decision.granted) throw new RateLimited(decision);
    const held = priced.flatMap(([limit, key], at) => {
      if (!(limit instanceof LeaseLimit)) return [];
      return new Held(limit, limit.keyOf(key), name, decision.decisions[at], sentAt, this.#shared.patienceMs);
    });
    const call = new Admission(name, decision, held, signal);
    let failed = true;
    try {
      const result = await body(call);
      failed = false;
      call.signal.throwIfAborted();
      return result;
    } catch (error) {
      throw call.signal.aborted ? call.signal.reason : error;
    } finally {
      call.stop();
      const end = performance.now() + this.#shared.patienceMs;
      for (const [at, [limit, key]] of [...priced.entries()].reverse()) {
        const { counted, granted } = decision.decisions[at];
        const fixed = rules[at][2] !== undefined;
        const used = failed && call.used === undefined ? 0 : fixed ? granted : (call.used ?? granted);
        // Each is sent, also when the patience has ended.
        if (counted) await limit.end(limit.keyOf(key), name, granted, used, Math.max(1, end - performance.now()));
      }
    }
  }

  /**
   * The limit with a memory for denials: after a denial, the server is not asked again before the wait is over, unless the
   * key changes. It opens two connections to each node, for client tracking.
   *
   * @param {RateLimit} limit
   */
  cached(limit) {
    const { track, nodeName } = this.#shared.adapter;
    if (!track) throw new TypeError('a cached limit needs a client that reports changes of keys: ioredis or node-redis');
    this.#denials ??= new Denials(track, nodeName, this.#shared.patienceMs);
    return new CachedLimit(rateOf(limit), this.#denials);
  }

  /**
   * The limit with units that are fetched in batches, and spent in the process. What is left of a batch is given back when no
   * call has come for `idle` seconds.
   *
   * @param {RateLimit} limit
   * @param {{ batch?: number, idle?: Time }} [options]
   */
  wallet(limit, { batch = 100, idle = 1 } = {}) {
    const wallet = new Wallet(rateOf(limit), this.#shared, checkedCost(batch), waitMs(idle));
    this.#wallets.push(wallet);
    return wallet;
  }

  /**
   * @param {string} message
   * @internal
   */
  warn(message) {
    this.#shared.log(`redis-rl: ${message}`, undefined);
  }

  /**
   * Ends the calls that wait, with `Down`. Gives back what is left in wallets, closes the connections of cached limits, and
   * waits for what is still under way in the background. It does not close the client.
   */
  async close() {
    await this.#shared.endWaits();
    await Promise.all(this.#wallets.map((wallet) => wallet.close()));
    await this.#denials?.close();
    await this.#shared.idle();
  }
}

/** What all limits have in common. */
export class Limit {
  #shared;

  /**
   * @param {Shared} shared
   * @param {string} name
   * @param {Policy} policy
   */
  constructor(shared, name, policy) {
    this.#shared = shared;
    /** The name of the limit. */
    this.name = name;
    /** The policy of the limit. */
    this.policy = policy;
  }

  /** @protected */
  get shared() {
    return this.#shared;
  }

  /**
   * The key on the server for a key of the program.
   *
   * @param {Key} key
   * @returns {Word}
   */
  keyOf(key) {
    const start = `${this.#shared.prefix}${this.name}:`;
    if (typeof key === 'string' && key !== '') {
      if (/\p{Surrogate}/u.test(key)) throw new InvalidKey('the key is not valid Unicode');
      return start + key;
    }
    if (key instanceof Uint8Array && key.length) return Buffer.concat([Buffer.from(start), key]);
    throw new InvalidKey(`a key is text or bytes, and not empty; not ${shown(key)}`);
  }

  /**
   * The decision that a call would get. Takes nothing.
   *
   * @param {Key} key
   * @param {number} [cost]
   * @returns {Promise<Decision>}
   */
  async peek(key, cost = 1) {
    return this.peekWord(this.keyOf(key), cost);
  }

  /**
   * @param {Word} key
   * @param {number} cost
   * @returns {Promise<Decision>}
   * @internal
   */
  async peekWord(key, cost) {
    const call = { ...this.peekCall(key, cost), replica: this.#shared.peekReplica };
    // It takes nothing, so it may be repeated.
    return this.#shared.orOpen(this.decide(this.#shared.caller.send(call, { repeat: true })), () => this.uncounted(cost));
  }

  /**
   * @param {Word} key
   * @param {number} cost
   * @internal
   */
  peekCall(key, cost) {
    return { name: 'RL.PEEK', args: [this.policy.algorithm, key, ...this.policy.words(), ...costWords(cost)], keys: [key] };
  }

  /**
   * Gives back what was charged with this id, or ends its lease. Null if the server does not know the id any more.
   *
   * @param {Key} key
   * @param {string} id
   * @returns {Promise<Decision | null>}
   */
  async release(key, id) {
    return this.releaseWord(this.keyOf(key), checkedId(id));
  }

  /**
   * @param {Word} key
   * @param {string} id
   * @param {number} [patienceMs]
   * @returns {Promise<Decision | null>}
   * @internal
   */
  async releaseWord(key, id, patienceMs) {
    const call = { name: 'RL.RELEASE', args: [key, id], keys: [key] };
    const { reply } = await this.#shared.caller.send(call, { repeat: true, patienceMs });
    return reply === null ? null : new Decision(this.name, this.policy, integers(reply));
  }

  /**
   * Ends what was charged with an id. Does not throw: the body has ended, and its result counts more than its accounting.
   *
   * @param {Word} _key
   * @param {string} _id
   * @param {number} _granted
   * @param {number} _used
   * @param {number} [_patienceMs]
   * @returns {Promise<void>}
   * @internal
   */
  async end(_key, _id, _granted, _used, _patienceMs) {
    throw new TypeError('a limit is of a rate, or a lease');
  }

  /**
   * @param {Promise<Answer>} answer
   * @protected
   */
  async decide(answer) {
    return new Decision(this.name, this.policy, integers((await answer).reply));
  }

  /**
   * The decision when the server gives none, and calls are let through then.
   *
   * @param {number} cost
   * @internal
   */
  uncounted(cost) {
    return new Decision(this.name, this.policy, [cost, this.policy.capacity, 0, 0, 0], { counted: false });
  }

  /**
   * Takes units, or waits for them in the key's queue.
   *
   * @param {Word} key
   * @param {Word[]} amount
   * @param {{ cost: number, waitMs: number, id?: string, ownId: boolean, signal?: AbortSignal }} options
   * @returns {Promise<Decision>}
   * @protected
   */
  async queue(key, amount, { cost, waitMs, id, ownId, signal }) {
    const words = this.policy.command(key).slice(1);
    words.push(...amount, ...(id === undefined ? [] : ['ID', id]));
    /** @param {string[]} block @returns {Call} */
    const makeCall = (block) => ({ name: `RL.${this.policy.algorithm}`, args: [...words, ...block], keys: [key] });
    const isFinal = (/** @type {unknown} */ reply) => {
      const [granted, , , wait] = integers(reply);
      return granted > 0 || wait < 0;
    };
    const decide = async (/** @type {AbortSignal | undefined} */ leave) => {
      let decision;
      try {
        const answer = await this.#shared.caller.inLine(makeCall, isFinal, { waitMs, repeat: id !== undefined, signal: leave });
        decision = new Decision(this.name, this.policy, integers(answer.reply));
      } catch (error) {
        if (id !== undefined && (leave?.aborted || (ownId && mayHaveRun(error)))) this.#shared.giveBack([key], id, ownId);
        throw error;
      }
      if (signal?.aborted) {
        if (decision.granted && id !== undefined) this.#shared.giveBack([key], id, ownId);
        throw signal.reason;
      }
      return decision;
    };
    const decided = waitMs > 0 ? this.#shared.waiting(signal, decide) : decide(signal);
    return this.#shared.orOpen(decided, () => this.uncounted(cost));
  }
}

/** A limit of a rate: fixed window, sliding window, GCRA or bucket. */
export class RateLimit extends Limit {
  /**
   * Takes units: all of them, or none. Sent once; with an `id` repeated when no reply comes, and charged once.
   *
   * @param {Key} key
   * @param {number} [cost]
   * @param {{ id?: string }} [options]
   */
  async take(key, cost = 1, { id } = {}) {
    return this.#amount(key, 'COST', cost, id);
  }

  /**
   * Takes as many units as fit, at most this number.
   *
   * @param {Key} key
   * @param {number} units
   * @param {{ id?: string }} [options]
   */
  async takeUpTo(key, units, { id } = {}) {
    return this.#amount(key, 'UPTO', units, id);
  }

  /**
   * Takes units regardless of the state. What is above the capacity is a debt.
   *
   * @param {Key} key
   * @param {number} units
   */
  async force(key, units) {
    return this.#amount(key, 'FORCE', units);
  }

  /**
   * Gives units back.
   *
   * @param {Key} key
   * @param {number} units
   */
  async refund(key, units) {
    return this.#amount(key, 'REFUND', units);
  }

  /**
   * @param {Key} key
   * @param {string} option
   * @param {number} units
   * @param {string} [id]
   * @returns {Promise<Decision>}
   */
  async #amount(key, option, units, id) {
    const amount = option === 'COST' ? costWords(units) : [option, String(checkedCost(units))];
    if (id !== undefined) amount.push('ID', checkedId(id));
    const word = this.keyOf(key);
    const call = { name: `RL.${this.policy.algorithm}`, args: [word, ...this.policy.words(), ...amount], keys: [word] };
    const answer = this.shared.caller.send(call, { repeat: id !== undefined });
    return this.shared.orOpen(this.decide(answer), () => this.uncounted(units));
  }

  /**
   * Takes a unit, and begins the window anew, with all that was counted in it; for `Fixed`.
   *
   * @param {Key} key
   * @returns {Promise<Decision>}
   * @internal
   */
  async takeInNewWindow(key) {
    const word = this.keyOf(key);
    const call = { name: 'EVAL', args: [NEW_WINDOW, '1', word, ...this.policy.words()], keys: [word] };
    return this.shared.orOpen(this.decide(this.shared.caller.send(call)), () => this.uncounted(1));
  }

  /**
   * Deletes a key of this limit.
   *
   * @param {Key} key
   * @internal
   */
  async forget(key) {
    const word = this.keyOf(key);
    await this.shared.caller.send({ name: 'DEL', args: [word], keys: [word] }, { repeat: true });
  }

  /**
   * Deletes all keys of this limit, on all nodes.
   *
   * @internal
   */
  async forgetAll() {
    const { caller, prefix } = this.shared;
    const start = `${prefix}${this.name}:`;
    const pattern = `${start.replace(/[*?[\]\\]/g, '\\$&')}*`;
    for (const node of await this.#nodes()) {
      let cursor = '0';
      do {
        const scan = { name: 'SCAN', args: [cursor, 'MATCH', pattern, 'COUNT', '100'], keys: [node] };
        const { reply } = await caller.send(scan, { repeat: true });
        if (!Array.isArray(reply) || !Array.isArray(reply[1])) {
          throw new UnexpectedReply(`the reply is not that of SCAN: ${inShort(reply)}`);
        }
        cursor = String(reply[0]);
        await Promise.all(reply[1].map((key) => caller.send({ name: 'DEL', args: [key], keys: [key] }, { repeat: true })));
      } while (cursor !== '0');
    }
  }

  /**
   * A key for each primary that has some of the limit's keys. In a cluster, a call goes to a node by a key that is there.
   *
   * @returns {Promise<Word[]>}
   */
  async #nodes() {
    const start = `${this.shared.prefix}${this.name}:`;
    // With a hash tag, all are on one node.
    if (slotOf(`${start}a`) === slotOf(`${start}b`)) return [start];
    let slots;
    try {
      ({ reply: slots } = await this.shared.caller.send({ name: 'CLUSTER', args: ['SLOTS'], keys: [start] }, { repeat: true }));
    } catch (error) {
      if (error instanceof Down && /cluster support disabled/.test(error.message)) return [start];
      throw error;
    }
    if (!Array.isArray(slots)) throw new UnexpectedReply(`the reply is not that of CLUSTER SLOTS: ${inShort(slots)}`);
    /** @type {Map<string, Word>} */
    const nodes = new Map();
    for (const [first, , [host, port]] of slots) nodes.set(`${host}:${port}`, textIn(Number(first)));
    return [...nodes.values()];
  }

  /**
   * Takes units from a window that ends at this time; only for `Fixed`.
   *
   * @param {Key} key
   * @param {Date | number} time a date, or Unix seconds
   * @param {number} [cost]
   * @param {{ id?: string }} [options]
   * @returns {Promise<Decision>}
   */
  async until(key, time, cost = 1, { id } = {}) {
    if (!(this.policy instanceof Fixed) || this.policy.options.length) {
      throw new InvalidLimit('until needs a Fixed without align');
    }
    const seconds = time instanceof Date ? time.getTime() / 1000 : time;
    if (!(typeof seconds === 'number' && seconds >= 0 && seconds < 1e15)) {
      throw new InvalidLimit(`until needs a date or Unix seconds, not ${shown(time)}`);
    }
    const word = this.keyOf(key);
    const words = ['UNTIL', seconds.toFixed(6), ...costWords(cost), ...(id === undefined ? [] : ['ID', checkedId(id)])];
    const call = { name: 'RL.FIXED', args: [word, ...this.policy.words(), ...words], keys: [word] };
    const answer = this.shared.caller.send(call, { repeat: id !== undefined });
    return this.shared.orOpen(this.decide(answer), () => this.uncounted(cost));
  }

  /**
   * Takes units, or waits for them in the key's queue, first come, first served. The wait has a connection of its own. An
   * abort of the signal ends it: the call leaves the queue, and nothing is charged.
   *
   * @param {Key} key
   * @param {Time} seconds how long it waits at most: up to a day
   * @param {number} [cost]
   * @param {{ id?: string, signal?: AbortSignal }} [options]
   */
  async wait(key, seconds, cost = 1, { id, signal } = {}) {
    const { word, amount, milliseconds } = checkedTimed(this, key, seconds, cost, id, signal);
    // With an id, an abort in the same moment as the grant gives the units back.
    const own = id === undefined && signal !== undefined && milliseconds > 0;
    return this.queue(word, amount, { cost, waitMs: milliseconds, id: own ? randomUUID() : id, ownId: own, signal });
  }

  /**
   * Books units that will be free in time, and sleeps until they may be used. It occupies no connection. An abort of the signal
   * gives the booking back.
   *
   * @param {Key} key
   * @param {Time} seconds how far ahead it may book: up to a day
   * @param {number} [cost]
   * @param {{ id?: string, signal?: AbortSignal }} [options]
   */
  async reserve(key, seconds, cost = 1, { id, signal } = {}) {
    const { word, amount, milliseconds } = checkedTimed(this, key, seconds, cost, id, signal);
    const charge = id ?? (signal ? randomUUID() : undefined);
    if (milliseconds > 0) amount.push('RESERVE', `${Math.round(milliseconds * 1000)}us`);
    if (charge !== undefined) amount.push('ID', charge);
    const call = { name: `RL.${this.policy.algorithm}`, args: [word, ...this.policy.words(), ...amount], keys: [word] };
    const sent = this.shared.caller.send(call, { repeat: charge !== undefined }).catch((error) => {
      if (charge !== undefined && id === undefined && mayHaveRun(error)) this.shared.giveBack([word], charge, true);
      throw error;
    });
    const decision = await this.shared.orOpen(this.decide(sent), () => this.uncounted(cost));
    return this.shared.waiting(signal, async (leave) => {
      if (decision.granted && decision.waitMs) await sleepAtLeast(decision.waitMs, leave).catch(() => {});
      if (leave.aborted) {
        if (decision.granted && decision.counted && charge !== undefined) this.shared.giveBack([word], charge, id === undefined);
        throw leave.reason;
      }
      return decision;
    });
  }

  /**
   * Sets a charge that was made with an id to what it really cost. Null if the server does not know the id any more.
   *
   * @param {Key} key
   * @param {string} id
   * @param {number} units
   * @returns {Promise<Decision | null>}
   */
  async settle(key, id, units) {
    return (await this.settleOnce(this.keyOf(key), checkedId(id), checkedUsed(units))).decision;
  }

  /**
   * @param {Word} key
   * @param {string} id
   * @param {number} units
   * @param {number} [patienceMs]
   * @internal
   */
  async settleOnce(key, id, units, patienceMs) {
    const call = { name: 'RL.SETTLE', args: [key, id, String(units)], keys: [key] };
    const { reply, before } = await this.shared.caller.send(call, { repeat: true, patienceMs });
    return { before, decision: reply === null ? null : new Decision(this.name, this.policy, integers(reply)) };
  }

  /**
   * Takes or waits, and throws `RateLimited` if the call is denied.
   *
   * @param {Key} key
   * @param {{ cost?: number, wait?: Time, id?: string, signal?: AbortSignal }} [options]
   */
  async protect(key, { cost = 1, wait = 0, id, signal } = {}) {
    return (await this.wait(key, wait, cost, { id, signal })).throwIfDenied();
  }

  /**
   * Charges an estimate, runs `body`, and settles the charge to `charge.used`.
   *
   * | `body` | the charge becomes |
   * |---|---|
   * | sets `used`, and returns or throws | what was used |
   * | returns without `used` | the estimate |
   * | throws without `used` | nothing |
   *
   * @template T
   * @param {Key} key
   * @param {number} estimate
   * @param {{ wait?: Time, id?: string, signal?: AbortSignal }} options
   * @param {(charge: Charge) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async withCharge(key, estimate, { wait = 0, id, signal }, body) {
    if (typeof body !== 'function') throw new TypeError('the options, which may be {}, and then a function are needed');
    const word = this.keyOf(key);
    const amount = costWords(estimate);
    const milliseconds = waitMs(wait);
    const ownId = id === undefined;
    const name = ownId ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const decision = await this.queue(word, amount, { cost: estimate, waitMs: milliseconds, id: name, ownId, signal });
    if (!decision.allowed) throw new RateLimited(decision);
    const charge = new Charge(name, decision);
    let failed = true;
    try {
      const result = await body(charge);
      failed = false;
      return result;
    } finally {
      const { counted, granted } = decision;
      if (counted) await this.end(word, name, granted, charge.used ?? (failed ? 0 : granted));
    }
  }

  /**
   * @param {Word} key
   * @param {string} id
   * @param {number} granted
   * @param {number} used
   * @param {number} [patienceMs]
   * @internal
   */
  async end(key, id, granted, used, patienceMs) {
    try {
      // Also if nothing changes, because the key remembers the id until then.
      const { decision, before } = await this.settleOnce(key, id, used, patienceMs);
      if (decision !== null || used <= granted || before) return;
      // The key has forgotten the id, because the charge is past. This is sent once: it has no id.
      const excess = [...this.policy.command(key).slice(1), 'FORCE', String(used - granted)];
      await this.shared.caller.send({ name: `RL.${this.policy.algorithm}`, args: excess, keys: [key] }, { patienceMs });
    } catch (error) {
      this.shared.log(`redis-rl: ${granted} of ${id} in ${this.name} were not settled to ${used}`, error);
    }
  }
}

/** A limit on what is held at a time. */
export class LeaseLimit extends Limit {
  /**
   * Holds a lease while `body` runs. It is renewed at each third of its ttl, and released at the end. If it is lost, or if
   * the signal is aborted, `lease.signal` is aborted: pass it on to what the body calls. Then `withLease` throws `LeaseLost`,
   * or the signal's reason, also if the body returns normally.
   *
   * @template T
   * @param {Key} key
   * @param {{ wait?: Time, cost?: number, id?: string, signal?: AbortSignal }} options
   * @param {(lease: Held) => T | Promise<T>} body
   * @returns {Promise<T>}
   */
  async withLease(key, { wait = 0, cost = 1, id, signal }, body) {
    if (typeof body !== 'function') throw new TypeError('the options, which may be {}, and then a function are needed');
    const word = this.keyOf(key);
    const amount = costWords(cost);
    const milliseconds = waitMs(wait);
    const ownId = id === undefined;
    const name = ownId ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const sentAt = ownId && !milliseconds ? performance.now() : undefined;
    const decision = await this.queue(word, amount, { cost, waitMs: milliseconds, id: name, ownId, signal });
    if (!decision.allowed) throw new RateLimited(decision);
    const held = new Held(this, word, name, decision, sentAt, this.shared.patienceMs, signal);
    try {
      const result = await body(held);
      held.signal.throwIfAborted();
      return result;
    } catch (error) {
      throw held.signal.aborted ? held.signal.reason : error;
    } finally {
      held.stop();
      if (decision.counted) await this.end(word, name);
    }
  }

  /**
   * @param {Word} key
   * @param {string} id
   * @param {number} [_granted]
   * @param {number} [_used]
   * @param {number} [patienceMs]
   * @internal
   */
  async end(key, id, _granted, _used, patienceMs) {
    try {
      await this.releaseWord(key, id, patienceMs);
    } catch (error) {
      this.shared.log(`redis-rl: the lease ${id} of ${this.name} was not released, and lapses`, error);
    }
  }

  /**
   * Renews a lease. Denied for ever (`wait` is null) if the id holds none.
   *
   * @param {Key} key
   * @param {string} id
   * @returns {Promise<Decision>}
   */
  async renew(key, id) {
    return this.renewWord(this.keyOf(key), checkedId(id));
  }

  /**
   * @param {Word} key
   * @param {string} id
   * @param {number} [patienceMs]
   * @internal
   */
  async renewWord(key, id, patienceMs) {
    const args = [...this.policy.command(key).slice(1), 'ID', id, 'RENEW'];
    return this.decide(this.shared.caller.send({ name: 'RL.LEASE', args, keys: [key] }, { repeat: true, patienceMs }));
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} [signal]
 */
async function sleepAtLeast(ms, signal) {
  const end = performance.now() + ms;
  for (let left = ms; left > 0; left = end - performance.now()) {
    await sleep(Math.min(2 ** 31 - 1, Math.ceil(left)), undefined, { signal });
  }
}

/** @param {number | undefined} estimate */
function checkedEstimate(estimate) {
  if (estimate === undefined) throw new InvalidCost('a rule without a cost needs an estimate');
  return checkedCost(estimate);
}

/**
 * Checks what a wait or a booking is called with.
 *
 * @param {{ keyOf(key: Key): Word }} limit
 * @param {Key} key
 * @param {Time} seconds
 * @param {number} cost
 * @param {string} [id]
 * @param {AbortSignal} [signal]
 */
function checkedTimed(limit, key, seconds, cost, id, signal) {
  const word = limit.keyOf(key);
  const amount = costWords(cost);
  if (seconds === undefined) throw new InvalidWait('a number of seconds, or text such as 30s, is needed');
  const milliseconds = waitMs(seconds);
  if (id !== undefined) checkedId(id);
  signal?.throwIfAborted();
  return { word, amount, milliseconds };
}

/** @param {number} cost */
function costWords(cost) {
  return checkedCost(cost) === 1 ? [] : ['COST', String(cost)];
}

/**
 * @param {unknown} reply
 * @param {number} count
 * @returns {[granted: number, wait: number, rows: number[][]]}
 */
function integersOfAll(reply, count) {
  if (Array.isArray(reply) && reply.length === 3 && Array.isArray(reply[2]) && reply[2].length === count) {
    const [granted, wait] = [integer(reply[0]), integer(reply[1])];
    if (Number.isSafeInteger(granted) && Number.isSafeInteger(wait)) return [granted, wait, reply[2].map(integers)];
  }
  throw new UnexpectedReply(`the reply is not that of RL.ALL: ${inShort(reply)}`);
}
