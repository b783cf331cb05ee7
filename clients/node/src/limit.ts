import { Admission } from './blocks.js';
import { checkedBody, checkedCost, checkedId, checkedKey, checkedUsed, costWords, type Key, nameOf, type Word } from './checks.js';
import { type Call, ofKey } from './clients/client.js';
import { Decision, integers, milliseconds, RateLimited } from './decision.js';
import { pauseOf, shown, type Time, waitMs } from './durations.js';
import { InvalidLimit, InvalidWait, LeaseLost } from './errors.js';
import type { DownOptions } from './local.js';
import { Fixed, Named, type Policy, stated } from './policies.js';
import { Repeats } from './repeats.js';
import { askedSeconds, type ThirdPartyResponse } from './responses.js';
import type { Servers } from './servers.js';
import type { Shared } from './shared.js';
import { type BlockOptions, Together } from './together.js';

/** What all limits have in common. */
export class Limit {
  readonly #shared;
  readonly #repeats;

  constructor(shared: Shared, readonly name: string, readonly policy: Policy) {
    this.#shared = shared;
    this.#repeats = new Repeats(shared.repeatDenialsMs);
  }

  /** @internal */
  get shared() {
    return this.#shared;
  }

  /** What comes before a key of the program on the server. */
  get #start() {
    return `${this.shared.prefix}${this.name}:`;
  }

  /** The key on the server for a key of the program. @internal */
  keyOf(key: Key): Word {
    return checkedKey(this.#start, key);
  }

  /** The limiter's command. @internal */
  call(key: Word, words: Word[]): Call {
    const { policy } = this;
    const call = ofKey(`RL.${policy.algorithm}`, key, ...policy.words(), ...words);
    if (!(policy instanceof Named)) return call;
    const { length } = Buffer.from(this.#start);
    const names = policy.names(typeof key === 'string' ? key.slice(this.#start.length) : key.subarray(length));
    return { ...ofKey('RL.USE', key, String(names.length), ...names, ...words), otherwise: call };
  }

  /** @internal */
  decided(reply: unknown) {
    return new Decision(this.name, this.policy, integers(reply));
  }

  /** What the server decides. @internal */
  async ask(call: Call, options: Parameters<Servers['send']>[1]) {
    return this.decided((await this.shared.servers.send(call, options)).reply);
  }

  /** The decision without the server. @internal */
  down(key: Word, cost: number, { force, ...options }: DownOptions = {}) {
    const { name, policy } = this;
    const local = force || policy.algorithm === 'LEASE' ? undefined : this.shared.local?.take(nameOf(key), cost, options);
    return new Decision(name, policy, local ?? [cost, policy.capacity, 0, 0, 0], 'down');
  }

  /** The decision that a call would get. Takes nothing. */
  async peek(key: Key, cost = 1): Promise<Decision> {
    stated(this.policy);
    const word = this.keyOf(key);
    checkedCost(cost);
    return this.shared.orDown(() => this.peekWord(word, cost), () => this.down(word, cost, { peek: true }));
  }

  /** @internal */
  async peekWord(key: Word, cost: number) {
    const { args, keys } = this.call(key, costWords(cost));
    // It takes nothing, so it may be repeated.
    const call = { name: 'RL.PEEK', args: [this.policy.algorithm, ...args], keys };
    return this.ask(call, { repeat: true });
  }

  /** Gives back what was charged with this id, or ends its lease. Null if the server does not know the id any more. */
  async release(key: Key, id: string): Promise<Decision | null> {
    return this.ended('RL.RELEASE', this.keyOf(key), [checkedId(id)]);
  }

  /**
   * Lets the key grant nothing for so long, whatever its policy is. Calls that wait keep their places. Of two pauses the one that ends
   * later is in force: returns the seconds until it ends.
   */
  async pause(key: Key, time: Time): Promise<number> {
    return this.#setPause(this.keyOf(key), pauseOf(time).text);
  }

  /** Ends the pause of a key. */
  async resume(key: Key): Promise<void> {
    await this.#setPause(this.keyOf(key));
  }

  /**
   * Pauses the key if a third party has answered with 429 or 503, for as long as its headers say: `Retry-After`, or when a limit
   * resets of which nothing remains. The response is one of fetch, axios or `node:http`. Returns the seconds until the pause in force
   * ends; 0 if the answer asks for none. Whatever the answer says throws no error. A pause is at most `maxPause` long, or an hour.
   */
  async observe(key: Key, response: ThirdPartyResponse, { maxPause = 3600 }: { maxPause?: Time } = {}): Promise<number> {
    const word = this.keyOf(key);
    const most = pauseOf(maxPause).ms / 1000;
    const seconds = askedSeconds(response, Date.now() / 1000);
    return seconds ? this.#setPause(word, pauseOf(Math.min(most, Math.max(0.001, seconds))).text) : 0;
  }

  /**
   * Sets a pause, or ends it. A wallet that has units of the key gives them back: after the server knows of the pause, so that it grants
   * them to nobody before.
   */
  async #setPause(key: Word, time?: string) {
    const stop = (giveBack: boolean) => {
      if (time) for (const wallet of this.shared.wallets) wallet.stop(nameOf(key), giveBack);
    };
    return this.shared.orDown(async () => {
      stop(false);
      try {
        // If it is repeated, the pause ends a little later.
        const call = ofKey('RL.PAUSE', key, time ?? '0');
        return milliseconds((await this.shared.servers.send(call, { repeat: true })).reply) / 1000;
      } finally {
        this.forget(key);
        stop(true);
      }
    }, () => 0);
  }

  /** @internal */
  async ended(name: string, key: Word, words: string[]): Promise<Decision | null> {
    this.forget(key);
    this.shared.checkOpen();
    return (await this.endWord(name, key, words)).decision;
  }

  /** @internal */
  async endWord(name: string, key: Word, words: string[]) {
    const { reply, before } = await this.shared.servers.end(name, key, ...words);
    return { before, decision: reply === null ? null : this.decided(reply) };
  }

  /** Ends what was charged with an id. Does not throw: the body has ended, and its result counts more than its accounting. @internal */
  async end(key: Word, id: string, _granted: number, _used: number) {
    try {
      await this.endWord('RL.RELEASE', key, [id]);
    } catch (error) {
      this.shared.log('end', `the lease ${id} of ${this.name} was not released, and lapses`, error);
    }
  }

  /** The denial of before that is repeated, or else what `ask` finds. @internal */
  protected async repeated(key: Word, cost: number, ask: () => Promise<Decision>) {
    const [name, { changes }] = [nameOf(key), this.#repeats];
    const again = this.#repeats.find(name, cost);
    if (again) return again;
    const decision = await ask();
    this.#repeats.add(name, cost, decision, changes);
    return decision;
  }

  /** Forgets that this key was denied. @internal */
  forget(key: Word) {
    this.#repeats.forget(nameOf(key));
  }

  /** A call for one key. @internal */
  protected together(key: Key, cost: number, settles = false) {
    return new Together(this.shared, [{ limit: this, key: this.keyOf(key), cost: checkedCost(cost), settles }]);
  }
}

/** A limit of a rate: fixed window, sliding window, GCRA or bucket. */
export class RateLimit extends Limit {
  /** Takes units: all of them, or none. Sent once; with an `id` repeated when the connection is lost, and charged once. */
  async take(key: Key, cost = 1, { id }: { id?: string } = {}): Promise<Decision> {
    const word = this.keyOf(key);
    const words = costWords(cost);
    if (id !== undefined) return this.#amount(word, [...words, 'ID', checkedId(id)], cost, { repeat: true });
    this.shared.checkOpen();
    return this.repeated(word, cost, () => this.#amount(word, words, cost));
  }

  /** Takes as many units as fit, at most this number. */
  async takeUpTo(key: Key, units: number): Promise<Decision> {
    return this.#amount(this.keyOf(key), ['UPTO', String(checkedCost(units))], units, { upTo: true });
  }

  /** Takes units whatever the state. What is above the capacity is a debt. */
  async force(key: Key, units: number): Promise<Decision> {
    return this.#change('FORCE', this.keyOf(key), checkedCost(units));
  }

  /** Gives units back. */
  async refund(key: Key, units: number): Promise<Decision> {
    return this.#change('REFUND', this.keyOf(key), checkedCost(units));
  }

  #change(how: string, key: Word, units: number) {
    this.forget(key);
    return this.#amount(key, [how, String(units)], units, { force: true });
  }

  /** Books units that will be free within this time, up to a day, and answers when to act: `wait` of the decision. */
  async reserve(key: Key, time: Time, cost = 1): Promise<Decision> {
    const word = this.keyOf(key);
    const words = costWords(cost);
    const ms = givenMs(time);
    return this.#amount(word, ms ? [...words, 'RESERVE', `${Math.round(ms * 1000)}us`] : words, cost);
  }

  /** Takes units from a window that ends at this time, a date or Unix seconds; only for `Fixed`. */
  async until(key: Key, time: Date | number, cost = 1): Promise<Decision> {
    const policy = stated(this.policy);
    if (!(policy instanceof Fixed && policy.isPlain)) throw new InvalidLimit('until needs a Fixed without align and zone');
    const seconds = time instanceof Date ? time.getTime() / 1000 : time;
    if (!(typeof seconds === 'number' && seconds >= 0 && seconds < 1e15)) {
      throw new InvalidLimit(`until needs a date or Unix seconds, not ${shown(time)}`);
    }
    return this.#amount(this.keyOf(key), ['UNTIL', seconds.toFixed(6), ...costWords(cost)], cost);
  }

  async #amount(key: Word, words: string[], cost: number, { repeat, ...options }: DownOptions & { repeat?: boolean } = {}) {
    const ask = () => this.ask(this.call(key, words), { repeat });
    return this.shared.orDown(ask, () => this.down(key, cost, options));
  }

  /**
   * Takes units, or waits for them in the key's line, first come, first served, for up to a day. A call that has to wait gets a
   * connection of its own. An abort of the signal ends it: the call leaves the line, and nothing is charged.
   */
  async wait(key: Key, time: Time, cost = 1, { signal }: { signal?: AbortSignal } = {}): Promise<Decision> {
    const call = this.together(key, cost);
    givenMs(time);
    return (await call.take({ wait: time, signal })).decision.decisions[0];
  }

  /** Takes units, or waits for them, and runs `body`. They stay charged, however it ends. Throws `RateLimited` if it is denied. */
  async admit<T>(
    key: Key,
    { cost = 1, wait, signal }: { cost?: number; wait?: Time; signal?: AbortSignal },
    body: (call: Admission) => T | Promise<T>,
  ): Promise<T> {
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
   */
  async charge<T>(key: Key, estimate: number, options: BlockOptions, body: (charge: Admission) => T | Promise<T>): Promise<T> {
    checkedBody(body);
    return this.together(key, estimate, true).around(options, ({ decisions }) => decisions[0], body);
  }

  /** Settles what was charged with this id to these units. Null if the server does not know the id any more. */
  async settle(key: Key, id: string, units: number): Promise<Decision | null> {
    return this.ended('RL.SETTLE', this.keyOf(key), [checkedId(id), String(checkedUsed(units))]);
  }

  /** @internal */
  override async end(key: Word, id: string, granted: number, used: number) {
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
   * Holds a lease while `body` runs. It is renewed at each third of its ttl, and released at the end. If it is lost, or if the
   * signal is aborted, `lease.signal` is aborted: pass it on to what the body calls. Then `hold` throws `LeaseLost`, or the
   * signal's reason, also if the body returns normally.
   */
  async hold<T>(
    key: Key,
    { units = 1, ...options }: BlockOptions & { units?: number },
    body: (lease: Admission) => T | Promise<T>,
  ): Promise<T> {
    checkedBody(body);
    return this.together(key, units).around(options, ({ decisions }) => decisions[0], body);
  }

  /** Renews a lease. Denied for ever (`wait` is null) if the id holds none. */
  async renew(key: Key, id: string): Promise<Decision> {
    const word = this.keyOf(key);
    checkedId(id);
    this.shared.checkOpen();
    return this.renewWord(word, id);
  }

  /** Renews a lease that was waited for. @internal */
  async keepWord(key: Word, id: string) {
    if (!(await this.renewWord(key, id)).granted) throw new LeaseLost(`the lease ${id} of ${this.name} is lost`);
  }

  /** @internal */
  async renewWord(key: Word, id: string, mostMs?: number) {
    return this.ask(this.call(key, ['ID', id, 'RENEW']), { repeat: true, ends: true, mostMs });
  }
}

function givenMs(time: unknown) {
  if (time === undefined) throw new InvalidWait('a number of seconds, or text such as 30s, is needed');
  return waitMs(time);
}

