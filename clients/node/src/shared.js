import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { performance } from 'node:perf_hooks';
import { nameOf } from './checks.js';
import { clientOf } from './clients/client.js';
import { pause } from './clock.js';
import { Decision } from './decision.js';
import { optionMs, shown } from './durations.js';
import { Closed, InvalidLimit, messageOf, Unavailable } from './errors.js';
import { LocalLimiter } from './local.js';
import { Gcra, Lease } from './policies.js';
import { Servers } from './servers.js';

/** @import { AnyClient, Call } from './clients/client.js' */
/** @import { AllDecision } from './decision.js' */
/** @import { Policy, Word } from './policies.js' */
/** @import { Wallet } from './wallet.js' */

/**
 * How a call takes units. `ownId`: this package has made the id. `renew` renews leases that were waited for, so that it is known when
 * they end.
 * @typedef {{ waitMs: number, id?: string, ownId?: boolean, signal?: AbortSignal, renew?: () => Promise<unknown> }} Acquiring
 */

/**
 * @typedef {object} LimitsOptions @property {string} [prefix] what each key on the server begins with
 * @property {'closed' | 'open' | Gcra} [onDown] what happens if the server gives no decision: `closed`, the default, throws
 *     `Unavailable`; `open` lets the call through; a `Gcra` limits each key in this process by itself
 * @property {number | string} [timeout] how long a reply may take on an open connection; 0.25 seconds if omitted
 * @property {number | string} [connectTimeout] how long a connection may take; 1 second if omitted
 * @property {number | string} [repeatDenials] how long a denial may be repeated in the process; 0 to 1 second, 0 if omitted
 */

const DAY_MS = 86_400_000;
const LOG_PAUSE_MS = 1000;
/** The pauses before what an id may hold is given back once more. */
const GIVE_BACK_PAUSES_MS = [100, 900];

/** What the limits of one `Limits` share. */
export class Shared {
  #local;
  /** @type {Set<Promise<void>>} */
  #background = new Set();
  /** When something of a kind was logged last. @type {Map<string, number>} */
  #logged = new Map();
  #ending = new AbortController();
  /** @type {Set<Promise<unknown>>} the calls that may wait */
  #waits = new Set();
  /** @type {Set<Wallet>} */
  wallets = new Set();
  letThrough = 0;
  closed = false;

  /** @param {AnyClient} client @param {LimitsOptions} options */
  constructor(client, { prefix = '', onDown = 'closed', timeout = 0.25, connectTimeout = 1, repeatDenials = 0, ...others }) {
    // Each call that waits listens.
    setMaxListeners(0, this.#ending.signal);
    const unknown = Object.keys(others);
    if (unknown.length) throw new InvalidLimit(`Limits has no option ${unknown.join(', ')}`);
    if (typeof prefix !== 'string') throw new InvalidLimit(`prefix must be text, not ${shown(prefix)}`);
    if (!(onDown === 'closed' || onDown === 'open' || onDown instanceof Gcra)) {
      throw new InvalidLimit(`onDown must be 'closed', 'open' or a Gcra, not ${shown(onDown)}`);
    }
    this.timeoutMs = optionMs(timeout, 'timeout', 1, DAY_MS);
    this.repeatDenialsMs = optionMs(repeatDenials, 'repeatDenials', 0, 1000);
    const known = clientOf(client);
    this.servers = new Servers(known, this.timeoutMs, optionMs(connectTimeout, 'connectTimeout', 1, DAY_MS));
    this.prefix = known.prefix + prefix;
    /** Whether calls may go on without the server, and so also requests whose limit, key or cost is wrong. */
    this.goesOn = onDown !== 'closed';
    this.#local = onDown instanceof Gcra ? new LocalLimiter(onDown) : undefined;
  }

  /** @param {string} what */
  checkOpen(what = 'the limits are closed') {
    if (this.closed) throw new Closed(what);
  }

  /**
   * What a call returns, or, if the server gave no decision and calls may go on then, what `instead` returns.
   * @template {{ granted: number | boolean } | number | null} T
   * @param {() => Promise<T>} call @param {() => T} instead @param {boolean} [counts] as a call that was let through
   * @returns {Promise<T>}
   */
  async orDown(call, instead, counts = true) {
    this.checkOpen();
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      this.log('down', `${!this.goesOn ? 'calls fail' : this.#local ? 'this process limits by itself' : 'calls are let through'}`, error);
      if (!this.goesOn) throw error;
      const decided = instead();
      if (counts && typeof decided === 'object' && decided?.granted) this.letThrough++;
      return decided;
    }
  }

  /**
   * The decision without the server.
   * @param {string} name @param {Policy} policy @param {Word} key @param {number} cost
   * @param {{ upTo?: boolean, peek?: boolean, force?: boolean }} [options]
   */
  down(name, policy, key, cost, { force = false, ...options } = {}) {
    const local = this.#local && !force && !(policy instanceof Lease);
    const row = local ? /** @type {LocalLimiter} */ (this.#local).take(nameOf(key), cost, options) : [cost, policy.capacity, 0, 0, 0];
    return new Decision(name, policy, row, 'down');
  }

  /**
   * Logs a warning of the process, once a second at most for each kind.
   * @param {string} kind @param {string} message @param {unknown} error
   */
  log(kind, message, error) {
    const now = performance.now();
    if (now - (this.#logged.get(kind) ?? -Infinity) < LOG_PAUSE_MS) return;
    this.#logged.set(kind, now);
    process.emitWarning(`redis-rl: ${message}: ${messageOf(error)}`, 'RateLimitWarning');
  }

  /**
   * Does something that no caller waits for. Its errors are logged.
   * @param {string} what @param {() => Promise<unknown>} action
   */
  later(what, action) {
    const task = action().then(() => {}, (error) => this.log('later', what, error));
    this.#background.add(task);
    void task.finally(() => this.#background.delete(task));
  }

  /** Waits until nothing is under way in the background. */
  async idle() {
    while (this.#background.size) await Promise.all(this.#background);
  }

  /**
   * Sends a call that takes units, and may wait in line for them.
   * @template {Decision | AllDecision} T
   * @param {Call} call without an id @param {Acquiring} options @param {(reply: unknown) => T} read @param {() => T} down
   * @returns {Promise<{ decision: T, takenAt: number }>} `takenAt`: when the call was sent by which it was taken
   */
  async acquire(call, { waitMs, id, ownId = id === undefined, signal, renew }, read, down) {
    const { keys } = call;
    const waitId = id ?? randomUUID();
    let takenAt = performance.now();
    let [mayHold, blocked] = [id !== undefined, false];
    const onBlock = () => (mayHold = blocked = true);
    const isFinal = (/** @type {unknown} */ reply) => {
      const { granted, waitMs } = read(reply);
      return Boolean(granted) || waitMs === null;
    };
    const decide = async (/** @type {AbortSignal} */ leave) => {
      let holds = false;
      try {
        const { reply, before } = await this.servers.inLine(call, isFinal, { waitMs, id, waitId, signal: leave, onBlock });
        const decision = read(reply);
        holds = Boolean(decision.granted);
        leave.throwIfAborted();
        if (holds && blocked && renew) {
          takenAt = performance.now();
          await renew();
        }
        if (holds && blocked && id === undefined) this.#forgetId(keys, waitId, 'decisions' in decision ? decision.decisions : [decision]);
        // What the first call was charged on some of several keys would stay.
        if (!holds && before && mayHold && keys.length > 1) this.giveBack(keys, waitId, ownId);
        return decision;
      } catch (error) {
        const isUnknown = error instanceof Unavailable && (error.sent || holds);
        if (mayHold && (leave.aborted || (ownId && isUnknown))) this.giveBack(keys, waitId, ownId);
        throw error;
      }
    };
    const ask = () => (waitMs > 0 ? this.#waiting(signal, decide) : decide(signal ?? new AbortController().signal));
    const decision = await this.orDown(ask, down);
    return { decision, takenAt };
  }

  /**
   * Gives back what an id holds on these keys. If the server does not know the id, the call itself may still be on its way to
   * the server, on another connection: then it is given back again a little later, and once more. Not so with an id of the
   * program, because the program may use it again.
   * @param {Word[]} keys @param {string} id @param {boolean} ownId whether this package has made the id
   */
  giveBack(keys, id, ownId) {
    for (const key of keys) {
      const call = { name: 'RL.RELEASE', args: [key, id], keys: [key] };
      this.later(`what ${id} has charged was not given back`, async () => {
        for (const ms of [...(ownId ? GIVE_BACK_PAUSES_MS : []), undefined]) {
          const { reply } = await this.servers.send(call, { repeat: true, ends: true });
          if (reply !== null || ms === undefined) return;
          // Nobody waits for this, and it must not keep the process for long.
          await pause(ms, this.#ending.signal);
        }
      });
    }
  }

  /**
   * Lets keys forget an id, whose units stay charged.
   * @param {Word[]} keys @param {string} id @param {readonly Decision[]} decisions
   */
  #forgetId(keys, id, decisions) {
    for (const [at, key] of keys.entries()) {
      const call = { name: 'RL.SETTLE', args: [key, id, String(decisions[at].granted)], keys: [key] };
      this.later(`a key remembers the id ${id} for longer`, () => this.servers.send(call, { repeat: true, ends: true }));
    }
  }

  /**
   * Runs a call that may wait. The caller's signal ends it, and so does `close`.
   * @template T @param {AbortSignal | undefined} signal @param {(signal: AbortSignal) => Promise<T>} action
   * @returns {Promise<T>}
   */
  async #waiting(signal, action) {
    const leaver = new AbortController();
    const abort = () => leaver.abort(signal?.reason);
    const end = () => leaver.abort(new Closed('the limits were closed'));
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort);
    this.#ending.signal.addEventListener('abort', end);
    const ended = action(leaver.signal);
    this.#waits.add(ended);
    try {
      return await ended;
    } finally {
      this.#waits.delete(ended);
      signal?.removeEventListener('abort', abort);
      this.#ending.signal.removeEventListener('abort', end);
    }
  }

  async close() {
    this.closed = true;
    this.#ending.abort();
    await Promise.allSettled(this.#waits);
    await Promise.all([...this.wallets].map((wallet) => wallet.close()));
    await this.idle();
    this.servers.close();
  }
}

