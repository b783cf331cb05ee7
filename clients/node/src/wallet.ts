import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { checkedCost, costWords, type Key, nameOf, type Word } from './checks.js';
import { later, pause } from './clock.js';
import { Decision, integers, type Source } from './decision.js';
import { Closed, Unavailable } from './errors.js';
import type { RateLimit } from './limit.js';
import { Named } from './policies.js';

/** How often a call fetches units that are past when their reply arrives, before it gives up. */
const MOST_LATE = 3;

/** Units that the server has charged for one id, and of which `left` may still be spent, until `until` on the monotonic clock. */
interface Batch {
  id: string;
  granted: number;
  left: number;
  until: number;
}

/** What the server has replied to a call that fetches units, and whether it had too few. */
interface Fetched {
  reply: number[];
  short: boolean;
}

/** What a wallet knows of one key. */
class Purse {
  batches: Batch[] = [];
  fetching?: Promise<Fetched>;
  cancelIdle = () => {};
  /** When units were granted last. */
  grantedAt = performance.now();
  /** The calls that are under way. */
  calls = 0;
  /** How many times a pause has begun: what was fetched before is not spent. */
  pauses = 0;
  remaining = 0;
  limit = 0;
  resetAt = 0;

  constructor(readonly key: Word) {}

  left(now: number) {
    return this.batches.reduce((sum, { left, until }) => (until > now ? sum + left : sum), 0);
  }
}

/**
 * Decides in the process, from units that it has fetched from the server in batches. So most calls take no round trip. It never
 * spends more than the server has charged. What it holds is charged before it is spent: other processes are denied these units
 * meanwhile, at most one batch for each process and key.
 */
export class Wallet {
  readonly #limit: RateLimit;
  readonly #batch: number;
  readonly #idleMs: number;
  readonly #purses = new Map<string, Purse>();
  #closed = false;

  constructor(limit: RateLimit, batch: number, idleMs: number) {
    [this.#limit, this.#batch, this.#idleMs] = [limit, batch, idleMs];
  }

  /** @internal */
  get shared() {
    return this.#limit.shared;
  }

  /** Takes units: all of them, or none. */
  async take(key: Key, cost = 1): Promise<Decision> {
    const word = this.#limit.keyOf(key);
    checkedCost(cost);
    if (this.#closed) throw new Closed('the wallet is closed');
    const { policy } = this.#limit;
    // Such a call is never granted, or by another policy than the default. A batch for it would keep units from others.
    if (cost > policy.capacity) return policy instanceof Named ? this.#limit.take(key, cost) : this.#limit.peek(key, cost);
    const name = nameOf(word);
    let purse = this.#purses.get(name);
    if (!purse) this.#purses.set(name, (purse = new Purse(word)));
    const mine = purse;
    mine.calls++;
    try {
      return this.#spend(mine, cost) ?? (await this.shared.orDown(() => this.#ask(mine, cost), () => this.#limit.down(word, cost)));
    } finally {
      mine.calls--;
      if (this.#closed && !mine.calls) void this.#giveBack(mine);
      else if (!mine.calls && !mine.batches.length) this.#drop(mine);
    }
  }

  /** Spends units that are here; undefined if they are too few. */
  #spend(purse: Purse, cost: number) {
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
    purse.grantedAt = now;
    this.#sweep(purse, now);
    return this.#decision(purse, [cost, 0], 'wallet');
  }

  /** Settles the batches that are spent, so that the server forgets their ids, and those that are past. */
  #sweep(purse: Purse, now: number) {
    if (purse.batches.every(({ left, until }) => left > 0 && until > now)) return;
    const done = purse.batches.filter(({ left, until }) => !left || until <= now);
    purse.batches = purse.batches.filter(({ left, until }) => left > 0 && until > now);
    for (const batch of done) void this.#settle(purse, batch);
  }

  async #ask(purse: Purse, cost: number) {
    for (let late = 0; ; ) {
      const joined = purse.fetching;
      const { reply, short } = await (joined ?? this.#fetch(purse, cost));
      const spent = this.#spend(purse, cost);
      if (spent) return spent;
      if (short) return this.#denied(purse, cost, reply);
      // Others have spent what came, or it came too late: then it is fetched again.
      if (!joined && ++late === MOST_LATE) throw new Unavailable('the server answers more slowly than its units pass');
    }
  }

  /** The denial of a call for which the server has too few units. What is here is given back at once: others may need it. */
  async #denied(purse: Purse, cost: number, reply: number[]) {
    // First come the calls that have waited for the same reply: it may be enough for some of them.
    await undefined;
    await this.#giveBack(purse);
    // The reply says when there is one unit. It is asked when there are more; without a peek, they are taken if they have come back.
    if (!reply[0] && cost === 1) return this.#decision(purse, [0, reply[3]], 'server');
    const limit = this.#limit;
    if (limit.policy instanceof Named) return limit.ask(limit.call(purse.key, costWords(cost)), {});
    const peeked = await limit.peekWord(purse.key, cost);
    // If they have come back meanwhile, the next call gets them.
    const waitMs = peeked.waitMs === null ? -1 : Math.max(1, peeked.waitMs);
    return new Decision(limit.name, limit.policy, [0, peeked.limit, peeked.remaining, waitMs, peeked.resetMs]);
  }

  #fetch(purse: Purse, cost: number): Promise<Fetched> {
    purse.fetching = this.#fetchNow(purse, cost).finally(() => (purse.fetching = undefined));
    return purse.fetching;
  }

  async #fetchNow(purse: Purse, cost: number): Promise<Fetched> {
    const asked = Math.max(this.#batch, cost - purse.left(performance.now()));
    const id = randomUUID();
    // The units pass at a time that is counted from before the call: the server has charged them later.
    const began = performance.now();
    const { pauses } = purse;
    let reply;
    try {
      const call = this.#limit.call(purse.key, ['UPTO', String(asked), 'ID', id]);
      reply = integers((await this.shared.servers.send(call, { repeat: true })).reply);
    } catch (error) {
      if (error instanceof Unavailable && error.sent) this.shared.giveBack([purse.key], id, true);
      throw error;
    }
    const [granted, limit, remaining, , resetMs] = reply;
    [purse.limit, purse.remaining, purse.resetAt] = [limit, remaining, began + resetMs];
    if (granted) {
      // A denied call does not begin the time without a grant anew.
      if (!purse.batches.length) this.#giveBackWhenIdle(purse, (purse.grantedAt = performance.now()));
      // Nothing is in use if the policy only shadows.
      const ms = purse.pauses === pauses ? Math.min(resetMs || Infinity, this.#limit.policy.period.ms) : 0;
      purse.batches.push({ id, granted, left: granted, until: began + ms });
      if (!ms) this.#sweep(purse, began);
    }
    return { reply, short: granted < asked };
  }

  #giveBackWhenIdle(purse: Purse, now: number) {
    purse.cancelIdle();
    purse.cancelIdle = later(purse.grantedAt + this.#idleMs - now, () => {
      const then = performance.now();
      if (then < purse.grantedAt + this.#idleMs) return this.#giveBackWhenIdle(purse, then);
      void this.#giveBack(purse);
      if (!purse.calls) this.#drop(purse);
    });
  }

  #decision(purse: Purse, [granted, waitMs]: [granted: number, waitMs: number], source: Source) {
    const now = performance.now();
    const remaining = Math.min(purse.limit, purse.left(now) + purse.remaining);
    const row = [granted, purse.limit, remaining, waitMs, Math.max(0, Math.ceil(purse.resetAt - now))];
    return new Decision(this.#limit.name, this.#limit.policy, row, source);
  }

  #drop(purse: Purse) {
    purse.cancelIdle();
    const name = nameOf(purse.key);
    if (this.#purses.get(name) === purse) this.#purses.delete(name);
  }

  /** Lets no call spend what was fetched of a key up to now. It may be given back at once. @internal */
  stop(name: string, giveBack: boolean) {
    const purse = this.#purses.get(name);
    if (!purse) return;
    purse.pauses++;
    const now = performance.now();
    for (const batch of purse.batches) batch.until = Math.min(batch.until, now);
    if (giveBack) this.#sweep(purse, now);
  }

  #giveBack(purse: Purse) {
    purse.cancelIdle();
    const { batches } = purse;
    purse.batches = [];
    return Promise.all(batches.map((batch) => this.#settle(purse, batch)));
  }

  #settle({ key }: Purse, { id, granted, left }: Batch) {
    return this.shared.later(`${left} of ${granted} units of ${this.#limit.name} were not given back`, () => {
      return this.#limit.endWord('RL.SETTLE', key, [id, String(granted - left)]);
    });
  }

  /** Gives back what is left, and waits for it. Calls after this throw `Closed`. */
  async close() {
    this.#closed = true;
    for (const purse of this.#purses.values()) if (!purse.calls) void this.#giveBack(purse);
    // The last call of a key gives back what it leaves.
    while ([...this.#purses.values()].some(({ calls }) => calls)) await pause(1);
    await this.shared.idle();
  }
}
