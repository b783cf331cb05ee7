import { randomUUID } from 'node:crypto';
import { Admission, Charge, Held } from './blocks.js';
import { checkedBody, checkedCost, checkedId, checkedKey, checkedUsed, nameOf } from './checks.js';
import { Decision, integers, milliseconds } from './decision.js';
import { pauseOf, shown, waitMs } from './durations.js';
import { InvalidLimit, InvalidWait, LeaseLost, RateLimited } from './errors.js';
import { Fixed } from './policies.js';
import { Repeats } from './repeats.js';
import { askedSeconds } from './responses.js';

/** @import { Key } from './checks.js' */
/** @import { Call } from './clients/client.js' */
/** @import { Policy, Word } from './policies.js' */
/** @import { ThirdPartyResponse } from './responses.js' */
/** @import { Acquiring, Shared } from './shared.js' */

/** A duration: a number of seconds, or text such as `30s`. @typedef {number | string} Time */

/** What all limits have in common. */
export class Limit {
  /** @param {Shared} shared @param {string} name @param {Policy} policy */
  constructor(shared, name, policy) {
    /** @internal */
    this.shared = shared;
    /** The name of the limit. */
    this.name = name;
    /** The policy of the limit. */
    this.policy = policy;
    Object.defineProperty(this, 'shared', { enumerable: false });
  }

  /** The key on the server for a key of the program. @param {Key} key @returns {Word} @internal */
  keyOf(key) {
    return checkedKey(`${this.shared.prefix}${this.name}:`, key);
  }

  /** The limiter's command. @param {Word} key @param {Word[]} words @returns {Call} @internal */
  call(key, words) {
    return { name: `RL.${this.policy.algorithm}`, args: [key, ...this.policy.words(), ...words], keys: [key] };
  }

  /** @param {unknown} reply @internal */
  decided(reply) {
    return new Decision(this.name, this.policy, integers(reply));
  }

  /**
   * The decision without the server.
   * @param {Word} key @param {number} cost
   * @param {{ upTo?: boolean, peek?: boolean, force?: boolean }} [options] @internal
   */
  down(key, cost, options) {
    return this.shared.down(this.name, this.policy, key, cost, options);
  }

  /** The decision that a call would get. Takes nothing. @param {Key} key @param {number} [cost] @returns {Promise<Decision>} */
  async peek(key, cost = 1) {
    const word = this.keyOf(key);
    checkedCost(cost);
    return this.shared.orDown(() => this.peekWord(word, cost), () => this.down(word, cost, { peek: true }), false);
  }

  /** @param {Word} key @param {number} cost @internal */
  async peekWord(key, cost) {
    const { args, keys } = this.call(key, costWords(cost));
    // It takes nothing, so it may be repeated.
    const { reply } = await this.shared.servers.send({ name: 'RL.PEEK', args: [this.policy.algorithm, ...args], keys }, { repeat: true });
    return this.decided(reply);
  }

  /**
   * Gives back what was charged with this id, or ends its lease. Null if the server does not know the id any more.
   * @param {Key} key @param {string} id @returns {Promise<Decision | null>}
   */
  async release(key, id) {
    return this.ended('RL.RELEASE', this.keyOf(key), [checkedId(id)]);
  }

  /**
   * Lets the key grant nothing for so long, whatever its policy is. Calls that wait keep their places. Of two pauses the one that ends
   * later is in force: returns the seconds until it ends.
   * @param {Key} key @param {Time} time @returns {Promise<number>}
   */
  async pause(key, time) {
    return this.#setPause(this.keyOf(key), pauseOf(time).text);
  }

  /** Ends the pause of a key. @param {Key} key @returns {Promise<void>} */
  async resume(key) {
    await this.#setPause(this.keyOf(key));
  }

  /**
   * Pauses the key if a third party has answered with 429 or 503, for as long as its headers say: `Retry-After`, or when a limit resets
   * of which nothing remains. Returns the seconds until the pause in force ends; 0 if the answer asks for none. Whatever the answer says
   * throws no error.
   * @param {Key} key @param {ThirdPartyResponse} response of fetch, axios or `node:http`
   * @param {{ maxPause?: Time }} [options] an hour if omitted @returns {Promise<number>}
   */
  async observe(key, response, { maxPause = 3600 } = {}) {
    const word = this.keyOf(key);
    const most = pauseOf(maxPause).ms / 1000;
    const seconds = askedSeconds(response, Date.now() / 1000);
    return seconds ? this.#setPause(word, pauseOf(Math.min(most, Math.max(0.001, seconds))).text) : 0;
  }

  /**
   * Sets a pause, or ends it. A wallet that has units of the key gives them back: after the server knows of the pause, so that it grants
   * them to nobody before.
   * @param {Word} key @param {string} [time] how long it is, if it is set
   */
  async #setPause(key, time) {
    /** @param {boolean} giveBack */
    const stop = (giveBack) => {
      if (time) for (const wallet of this.shared.wallets) wallet.stop(nameOf(key), giveBack);
    };
    return this.shared.orDown(async () => {
      stop(false);
      try {
        // If it is repeated, the pause ends a little later.
        const call = { name: 'RL.PAUSE', args: [key, time ?? '0'], keys: [key] };
        return milliseconds((await this.shared.servers.send(call, { repeat: true })).reply) / 1000;
      } finally {
        this.forget(key);
        stop(true);
      }
    }, () => 0, false);
  }

  /** @param {string} name @param {Word} key @param {string[]} words @returns {Promise<Decision | null>} @internal */
  async ended(name, key, words) {
    this.forget(key);
    return this.shared.orDown(async () => (await this.endWord(name, key, words)).decision, () => null);
  }

  /** @param {string} name @param {Word} key @param {string[]} words @internal */
  async endWord(name, key, words) {
    const { reply, before } = await this.shared.servers.send({ name, args: [key, ...words], keys: [key] }, { repeat: true, ends: true });
    return { before, decision: reply === null ? null : this.decided(reply) };
  }

  /**
   * Ends what was charged with an id. Does not throw: the body has ended, and its result counts more than its accounting.
   * @param {Word} key @param {string} id @param {number} _granted @param {number} _used
   * @returns {Promise<void>} @internal
   */
  async end(key, id, _granted, _used) {
    try {
      await this.endWord('RL.RELEASE', key, [id]);
    } catch (error) {
      this.shared.log('end', `the lease ${id} of ${this.name} was not released, and lapses`, error);
    }
  }

  /** Forgets that this key was denied. @param {Word} _key @internal */
  forget(_key) {}

  /**
   * Takes units, or waits for them in the key's line.
   * @param {Word} key @param {number} cost @param {Acquiring} options @internal
   */
  acquire(key, cost, options) {
    const call = this.call(key, costWords(cost));
    return this.shared.acquire(call, options, (reply) => this.decided(reply), () => this.down(key, cost));
  }
}

/** A limit of a rate: fixed window, sliding window, GCRA or bucket. */
export class RateLimit extends Limit {
  #repeats;

  /** @param {Shared} shared @param {string} name @param {Policy} policy */
  constructor(shared, name, policy) {
    super(shared, name, policy);
    this.#repeats = shared.repeatDenialsMs ? new Repeats(shared.repeatDenialsMs) : undefined;
  }

  /** @param {Word} key @internal */
  forget(key) {
    this.#repeats?.forget(nameOf(key));
  }

  /**
   * Takes units: all of them, or none. Sent once; with an `id` repeated when the connection is lost, and charged once.
   * @param {Key} key @param {number} [cost] @param {{ id?: string }} [options] @returns {Promise<Decision>}
   */
  async take(key, cost = 1, { id } = {}) {
    const word = this.keyOf(key);
    const words = costWords(cost);
    if (id !== undefined) return this.#amount(word, [...words, 'ID', checkedId(id)], cost, true);
    this.shared.checkOpen();
    const name = this.#repeats ? nameOf(word) : '';
    const again = this.#repeats?.find(name, cost);
    if (again) return again;
    const changes = this.#repeats?.changes;
    const decision = await this.#amount(word, words, cost);
    this.#repeats?.add(name, cost, decision, changes);
    return decision;
  }

  /** Takes as many units as fit, at most this number. @param {Key} key @param {number} units */
  async takeUpTo(key, units) {
    return this.#amount(this.keyOf(key), ['UPTO', String(checkedCost(units))], units, false, { upTo: true });
  }

  /** Takes units whatever the state. What is above the capacity is a debt. @param {Key} key @param {number} units */
  async force(key, units) {
    const word = this.keyOf(key);
    checkedCost(units);
    this.forget(word);
    return this.#amount(word, ['FORCE', String(units)], units, false, { force: true });
  }

  /** Gives units back. @param {Key} key @param {number} units */
  async refund(key, units) {
    const word = this.keyOf(key);
    checkedCost(units);
    this.forget(word);
    return this.#amount(word, ['REFUND', String(units)], units, false, { force: true });
  }

  /**
   * Books units that will be free in time, and answers when to act: `wait` of the decision.
   * @param {Key} key @param {Time} time how far ahead it may book: up to a day @param {number} [cost]
   */
  async reserve(key, time, cost = 1) {
    const word = this.keyOf(key);
    const words = costWords(cost);
    const ms = givenMs(time);
    return this.#amount(word, ms ? [...words, 'RESERVE', `${Math.round(ms * 1000)}us`] : words, cost);
  }

  /**
   * Takes units from a window that ends at this time; only for `Fixed`.
   * @param {Key} key @param {Date | number} time a date, or Unix seconds @param {number} [cost]
   */
  async until(key, time, cost = 1) {
    if (!(this.policy instanceof Fixed && this.policy.isPlain)) throw new InvalidLimit('until needs a Fixed without align and zone');
    const seconds = time instanceof Date ? time.getTime() / 1000 : time;
    if (!(typeof seconds === 'number' && seconds >= 0 && seconds < 1e15)) {
      throw new InvalidLimit(`until needs a date or Unix seconds, not ${shown(time)}`);
    }
    return this.#amount(this.keyOf(key), ['UNTIL', seconds.toFixed(6), ...costWords(cost)], cost);
  }

  /**
   * @param {Word} key @param {string[]} words @param {number} cost @param {boolean} [repeat]
   * @param {{ upTo?: boolean, force?: boolean }} [options]
   */
  async #amount(key, words, cost, repeat = false, options) {
    return this.shared.orDown(
      async () => this.decided((await this.shared.servers.send(this.call(key, words), { repeat })).reply),
      () => this.down(key, cost, options),
      !options?.force,
    );
  }

  /**
   * Takes units, or waits for them in the key's line, first come, first served. A call that has to wait gets a connection of its
   * own. An abort of the signal ends it: the call leaves the line, and nothing is charged.
   * @param {Key} key @param {Time} time how long it waits at most: up to a day @param {number} [cost]
   * @param {{ signal?: AbortSignal }} [options] @returns {Promise<Decision>}
   */
  async wait(key, time, cost = 1, { signal } = {}) {
    const word = this.keyOf(key);
    checkedCost(cost);
    const ms = givenMs(time);
    signal?.throwIfAborted();
    return (await this.acquire(word, cost, { waitMs: ms, signal })).decision;
  }

  /**
   * Takes units, or waits for them, and runs `body`. They stay charged, however it ends. Throws `RateLimited` if the call is denied.
   * @template T @param {Key} key @param {{ cost?: number, wait?: Time, signal?: AbortSignal }} options
   * @param {(call: Admission) => T | Promise<T>} body @returns {Promise<T>}
   */
  async admit(key, { cost = 1, wait, signal }, body) {
    checkedBody(body);
    const ms = waitMs(wait);
    signal?.throwIfAborted();
    const decision = ms ? await this.wait(key, ms / 1000, cost, { signal }) : await this.take(key, cost);
    if (!decision.allowed) throw new RateLimited(decision);
    return new Admission(undefined, decision, signal).run(body, async () => {});
  }

  /**
   * Charges an estimate, runs `body`, and settles the charge to `charge.used`.
   *
   * | `body` | the charge becomes |
   * |---|---|
   * | sets `used`, and ends in any way | what was used |
   * | returns without `used` | the estimate |
   * | throws without `used` | nothing |
   *
   * @template T @param {Key} key @param {number} estimate @param {{ wait?: Time, id?: string, signal?: AbortSignal }} options
   * @param {(charge: Charge) => T | Promise<T>} body @returns {Promise<T>}
   */
  async charge(key, estimate, { wait, id, signal }, body) {
    checkedBody(body);
    const word = this.keyOf(key);
    checkedCost(estimate);
    const ms = waitMs(wait);
    const ownId = id === undefined;
    const name = ownId ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const { decision } = await this.acquire(word, estimate, { waitMs: ms, id: name, ownId, signal });
    if (!decision.allowed) throw new RateLimited(decision);
    const charge = new Charge(name, decision, signal);
    return charge.run(body, async (failed) => {
      const { source, granted } = decision;
      if (source !== 'down') await this.end(word, name, granted, charge.used ?? (failed ? 0 : granted));
    });
  }

  /**
   * Settles what was charged with this id to these units. Null if the server does not know the id any more.
   * @param {Key} key @param {string} id @param {number} units @returns {Promise<Decision | null>}
   */
  async settle(key, id, units) {
    return this.ended('RL.SETTLE', this.keyOf(key), [checkedId(id), String(checkedUsed(units))]);
  }

  /** @param {Word} key @param {string} id @param {number} granted @param {number} used @internal */
  async end(key, id, granted, used) {
    this.forget(key);
    try {
      // Also if nothing changes, because the key remembers the id until then.
      const { decision, before } = await this.endWord('RL.SETTLE', key, [id, String(used)]);
      if (decision !== null || used <= granted || before) return;
      // The key has forgotten the id, because the charge is past. This is sent once: it has no id.
      await this.shared.servers.send(this.call(key, ['FORCE', String(used - granted)]), { ends: true });
    } catch (error) {
      this.shared.log('end', `${granted} of ${id} in ${this.name} were not settled to ${used}`, error);
    }
  }
}

/** A limit on what is held at a time. */
export class LeaseLimit extends Limit {
  /**
   * Holds a lease while `body` runs. It is renewed at each third of its ttl, and released at the end. If it is lost, or if
   * the signal is aborted, `lease.signal` is aborted: pass it on to what the body calls. Then `hold` throws `LeaseLost`, or the
   * signal's reason, also if the body returns normally.
   * @template T @param {Key} key
   * @param {{ wait?: Time, units?: number, id?: string, signal?: AbortSignal }} options
   * @param {(lease: Held) => T | Promise<T>} body @returns {Promise<T>}
   */
  async hold(key, { wait, units = 1, id, signal }, body) {
    checkedBody(body);
    const word = this.keyOf(key);
    checkedCost(units);
    const ms = waitMs(wait);
    const ownId = id === undefined;
    const name = ownId ? randomUUID() : checkedId(id);
    signal?.throwIfAborted();
    const { decision, takenAt } = await this.acquire(word, units, {
      waitMs: ms, id: name, ownId, signal, renew: () => this.keepWord(word, name),
    });
    if (!decision.allowed) throw new RateLimited(decision);
    const held = new Held(name, decision, signal);
    const known = decision.source !== 'down';
    if (known) held.keep(this, word, takenAt);
    return held.run(body, async () => {
      if (known) await this.end(word, name, 0, 0);
    });
  }

  /**
   * Renews a lease. Denied for ever (`wait` is null) if the id holds none.
   * @param {Key} key @param {string} id @returns {Promise<Decision>}
   */
  async renew(key, id) {
    const word = this.keyOf(key);
    checkedId(id);
    return this.shared.orDown(() => this.renewWord(word, id), () => this.down(word, 1));
  }

  /** Renews a lease that was waited for. @param {Word} key @param {string} id @internal */
  async keepWord(key, id) {
    if (!(await this.renewWord(key, id)).granted) throw new LeaseLost(`the lease ${id} of ${this.name} is lost`);
  }

  /** @param {Word} key @param {string} id @param {number} [mostMs] @internal */
  async renewWord(key, id, mostMs = Infinity) {
    const options = { repeat: true, ends: true, ms: Math.min(mostMs, this.shared.timeoutMs) };
    return this.decided((await this.shared.servers.send(this.call(key, ['ID', id, 'RENEW']), options)).reply);
  }
}

/** @param {unknown} time */
function givenMs(time) {
  if (time === undefined) throw new InvalidWait('a number of seconds, or text such as 30s, is needed');
  return waitMs(time);
}

/** @param {number} cost */
export function costWords(cost) {
  return checkedCost(cost) === 1 ? [] : ['COST', String(cost)];
}
