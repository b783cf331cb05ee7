import { Buffer } from 'node:buffer';
import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { later } from './adapters/adapter.js';
import { mayHaveRun } from './caller.js';
import { checkedCost } from './checks.js';
import { Decision, integers } from './decision.js';
import { Down } from './errors.js';

/** @typedef {import('./limits.js').Key} Key */
/** @typedef {import('./limits.js').RateLimit} RateLimit */
/** @typedef {import('./policies.js').Word} Word */

/** How often a call fetches units that are past when their reply arrives, before it gives up. */
const MOST_LATE = 3;

/**
 * Units that the server has charged for one id, and of which `left` may still be spent, until `until` on the monotonic clock.
 *
 * @typedef {{ id: string, granted: number, left: number, until: number }} Batch
 */

/** What a wallet knows of one key. */
class Purse {
  /** @param {Word} key */
  constructor(key) {
    this.key = key;
    /** @type {Batch[]} */
    this.batches = [];
    /** @type {Promise<Fetched> | undefined} */
    this.fetching = undefined;
    this.cancelIdle = () => {};
    /** The calls that are under way. */
    this.calls = 0;
    this.remaining = 0;
    this.limit = 0;
    this.resetAt = 0;
  }

  /** @param {number} now */
  left(now) {
    return this.batches.reduce((sum, { left, until }) => (until > now ? sum + left : sum), 0);
  }
}

/** @typedef {{ reply: number[], short: boolean }} Fetched */

/**
 * Decides in the process, from units that it has fetched from the server in batches. So most calls take no round trip. It never
 * spends more than the server has charged. What it holds is charged before it is spent: other processes are denied these units
 * meanwhile, at most one batch for each process and key.
 */
export class Wallet {
  #limit;
  #shared;
  #batch;
  #idleMs;
  /** @type {Map<string, Purse>} */
  #purses = new Map();
  #closed = false;

  /**
   * @param {RateLimit} limit
   * @param {import('./limits.js').Shared} shared
   * @param {number} batch
   * @param {number} idleMs
   */
  constructor(limit, shared, batch, idleMs) {
    this.#limit = limit;
    this.#shared = shared;
    this.#batch = batch;
    this.#idleMs = idleMs;
  }

  /**
   * Takes units: all of them, or none.
   *
   * @param {Key} key
   * @param {number} [cost]
   * @returns {Promise<Decision>}
   */
  async take(key, cost = 1) {
    const word = this.#limit.keyOf(key);
    checkedCost(cost);
    if (this.#closed) throw new Error('the wallet is closed');
    const name = Buffer.from(word).toString('latin1');
    let purse = this.#purses.get(name);
    if (!purse) this.#purses.set(name, (purse = new Purse(word)));
    const mine = purse;
    mine.cancelIdle();
    mine.calls++;
    try {
      return this.#spend(mine, cost) ?? (await this.#shared.orOpen(this.#ask(mine, cost), () => this.#limit.uncounted(cost)));
    } finally {
      mine.calls--;
      if (!mine.calls) {
        if (this.#closed) this.#giveBack(mine);
        else mine.cancelIdle = later(this.#idleMs, () => this.#retire(name, mine));
      }
    }
  }

  /**
   * Spends units that are here; undefined if they are too few.
   *
   * @param {Purse} purse
   * @param {number} cost
   */
  #spend(purse, cost) {
    const now = performance.now();
    if (purse.left(now) < cost) return undefined;
    let missing = cost;
    for (const batch of purse.batches) {
      if (batch.until <= now) continue;
      const part = Math.min(missing, batch.left);
      batch.left -= part;
      missing -= part;
      if (!missing) break;
    }
    this.#sweep(purse, now);
    return this.#decision(purse, cost, 0, now);
  }

  /**
   * Settles the batches that are spent, so that the server forgets their ids, and those that are past.
   *
   * @param {Purse} purse
   * @param {number} now
   */
  #sweep(purse, now) {
    if (purse.batches.every(({ left, until }) => left > 0 && until > now)) return;
    const done = purse.batches.filter(({ left, until }) => !left || until <= now);
    purse.batches = purse.batches.filter(({ left, until }) => left > 0 && until > now);
    for (const batch of done) this.#settle(purse, batch);
  }

  /**
   * @param {Purse} purse
   * @param {number} cost
   */
  async #ask(purse, cost) {
    for (let late = 0; ; ) {
      const joined = purse.fetching;
      const { reply, short } = await (joined ?? this.#fetch(purse, cost));
      const spent = this.#spend(purse, cost);
      if (spent) return spent;
      const now = performance.now();
      if (short) return this.#denied(purse, cost, reply, now);
      // Others have spent what came, or it came too late: then it is fetched again.
      if (!joined && ++late === MOST_LATE) throw new Down('the server answers more slowly than its units pass');
    }
  }

  /**
   * The denial of a call for which the server has too few units. The server's reply says when there is one more; if more are
   * missing, it is asked when there are so many.
   *
   * @param {Purse} purse
   * @param {number} cost
   * @param {number[]} reply
   * @param {number} now
   */
  async #denied(purse, cost, reply, now) {
    const missing = cost - purse.left(now);
    if (!reply[0] && missing === 1) return this.#decision(purse, 0, reply[3], now);
    const peeked = await this.#limit.peekWord(purse.key, missing);
    if (!peeked.counted) return this.#limit.uncounted(cost);
    // They have come back meanwhile. The next call gets them.
    const waitMs = cost > purse.limit || peeked.waitMs === null ? -1 : Math.max(1, peeked.waitMs);
    return this.#decision(purse, 0, waitMs, now);
  }

  /**
   * @param {Purse} purse
   * @param {number} cost
   * @returns {Promise<Fetched>}
   */
  #fetch(purse, cost) {
    const fetched = this.#fetchNow(purse, cost).finally(() => (purse.fetching = undefined));
    purse.fetching = fetched;
    return fetched;
  }

  /**
   * @param {Purse} purse
   * @param {number} cost
   * @returns {Promise<Fetched>}
   */
  async #fetchNow(purse, cost) {
    const { policy } = this.#limit;
    const asked = Math.max(this.#batch, cost - purse.left(performance.now()));
    const id = randomUUID();
    const args = [...policy.command(purse.key).slice(1), 'UPTO', String(asked), 'ID', id];
    // The units pass at a time that is counted from before the call: the server has charged them later.
    const began = performance.now();
    let reply;
    try {
      const call = { name: `RL.${policy.algorithm}`, args, keys: [purse.key] };
      reply = integers((await this.#shared.caller.send(call, { repeat: true })).reply);
    } catch (error) {
      if (mayHaveRun(error)) this.#shared.giveBack([purse.key], id, true);
      throw error;
    }
    const [granted, limit, remaining, , resetMs] = reply;
    [purse.limit, purse.remaining, purse.resetAt] = [limit, remaining, began + resetMs];
    if (granted) purse.batches.push({ id, granted, left: granted, until: began + Math.min(resetMs, policy.period.ms) });
    return { reply, short: granted < asked };
  }

  /**
   * @param {Purse} purse
   * @param {number} granted
   * @param {number} waitMs
   * @param {number} now
   */
  #decision(purse, granted, waitMs, now) {
    const remaining = Math.min(purse.limit, purse.left(now) + purse.remaining);
    const resetMs = Math.max(0, Math.ceil(purse.resetAt - now));
    return new Decision(this.#limit.name, this.#limit.policy, [granted, purse.limit, remaining, granted ? 0 : waitMs, resetMs]);
  }

  /**
   * @param {string} name
   * @param {Purse} purse
   */
  #retire(name, purse) {
    this.#purses.delete(name);
    this.#giveBack(purse);
  }

  /** @param {Purse} purse */
  #giveBack(purse) {
    const { batches } = purse;
    purse.batches = [];
    for (const batch of batches) this.#settle(purse, batch);
  }

  /**
   * @param {Purse} purse
   * @param {Batch} batch
   */
  #settle({ key }, { id, granted, left }) {
    this.#shared.later(`${left} of ${granted} units of ${this.#limit.name} were not given back`, () => {
      return this.#limit.settleOnce(key, id, granted - left);
    });
  }

  /** Gives back what is left, and waits for it. Calls after this are errors. */
  async close() {
    this.#closed = true;
    for (const purse of this.#purses.values()) {
      purse.cancelIdle();
      if (!purse.calls) this.#giveBack(purse);
    }
    while ([...this.#purses.values()].some(({ fetching }) => fetching)) {
      await Promise.allSettled([...this.#purses.values()].map(({ fetching }) => fetching));
    }
    await this.#shared.idle();
  }
}
