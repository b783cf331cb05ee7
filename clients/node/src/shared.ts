import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { performance } from 'node:perf_hooks';
import { nameOf } from './checks.js';
import { type AnyClient, type Call, clientOf } from './clients/client.js';
import { pause } from './clock.js';
import { type AllDecision, Decision } from './decision.js';
import { DAY_MS, optionMs, shown, type Time } from './durations.js';
import { Closed, InvalidLimit, messageOf, Unavailable } from './errors.js';
import { LocalLimiter } from './local.js';
import { Gcra, type Policy, type Word } from './policies.js';
import { Servers } from './servers.js';
import type { Wallet } from './wallet.js';

/** How a call takes units. */
export interface Acquiring {
  waitMs: number;
  id?: string;
  /** This package has made the id. */
  ownId?: boolean;
  signal?: AbortSignal;
  /** Renews leases that were waited for, so that it is known when they end. */
  renew?: () => Promise<unknown>;
}

export interface LimitsOptions {
  /** What each key on the server begins with. */
  prefix?: string;
  /** Without a decision, `closed`, the default, throws `Unavailable`; `open` lets through; a `Gcra` limits each key in this process. */
  onDown?: 'closed' | 'open' | Gcra;
  /** How long a reply may take on an open connection; 0.25 seconds if omitted. */
  timeout?: Time;
  /** How long a connection may take; 1 second if omitted. */
  connectTimeout?: Time;
  /** How long a denial may be repeated in the process; 0 to 1 second, 0 if omitted. */
  repeatDenials?: Time;
}

/** What kind of call is decided without the server. `force`: one that takes or gives back in any case. */
export interface DownOptions {
  upTo?: boolean;
  peek?: boolean;
  force?: boolean;
}

const LOG_PAUSE_MS = 1000;
/** The pauses before what an id may hold is given back once more. */
const GIVE_BACK_PAUSES_MS = [100, 900];

/** What the limits of one `Limits` share. */
export class Shared {
  readonly #local;
  readonly #background = new Set<Promise<void>>();
  /** When something of a kind was logged last. */
  readonly #logged = new Map<string, number>();
  readonly #ending = new AbortController();
  /** The calls that may wait. */
  readonly #waits = new Set<Promise<unknown>>();
  readonly wallets = new Set<Wallet>();
  readonly timeoutMs;
  readonly repeatDenialsMs;
  readonly servers;
  readonly prefix;
  /** Whether calls may go on without the server, and so also requests whose limit, key or cost is wrong. */
  readonly goesOn;
  letThrough = 0;
  closed = false;

  constructor(client: AnyClient, options: LimitsOptions) {
    const { prefix = '', onDown = 'closed', timeout = 0.25, connectTimeout = 1, repeatDenials = 0, ...others } = options;
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
    this.goesOn = onDown !== 'closed';
    this.#local = onDown instanceof Gcra ? new LocalLimiter(onDown) : undefined;
  }

  checkOpen() {
    if (this.closed) throw new Closed('the limits are closed');
  }

  /**
   * What a call returns, or, if the server gave no decision and calls may go on then, what `instead` returns. Then it `counts` as a call
   * that was let through.
   */
  async orDown<T extends Decision | AllDecision | number | null>(call: () => Promise<T>, instead: () => T, counts = true): Promise<T> {
    this.checkOpen();
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      this.log('down', !this.goesOn ? 'calls fail' : this.#local ? 'this process limits by itself' : 'calls are let through', error);
      if (!this.goesOn) throw error;
      const decided = instead();
      if (counts && typeof decided === 'object' && decided?.granted) this.letThrough++;
      return decided;
    }
  }

  /** The decision without the server. */
  down(name: string, policy: Policy, key: Word, cost: number, { force, ...options }: DownOptions = {}) {
    const local = force || policy.algorithm === 'LEASE' ? undefined : this.#local?.take(nameOf(key), cost, options);
    return new Decision(name, policy, local ?? [cost, policy.capacity, 0, 0, 0], 'down');
  }

  /** Logs a warning of the process, once a second at most for each kind. */
  log(kind: string, message: string, error: unknown) {
    const now = performance.now();
    if (now - (this.#logged.get(kind) ?? -Infinity) < LOG_PAUSE_MS) return;
    this.#logged.set(kind, now);
    process.emitWarning(`redis-rl: ${message}: ${messageOf(error)}`, 'RateLimitWarning');
  }

  /** Does something that no caller waits for. Its errors are logged. */
  later(what: string, action: () => Promise<unknown>) {
    const task = action().then(() => {}, (error) => this.log('later', what, error));
    this.#background.add(task);
    void task.finally(() => this.#background.delete(task));
  }

  /** Waits until nothing is under way in the background. */
  async idle() {
    while (this.#background.size) await Promise.all(this.#background);
  }

  /** Sends a call that takes units, and may wait in line for them. `takenAt`: when the call was sent by which it was taken. */
  async acquire(
    call: Call,
    { waitMs, id, ownId = id === undefined, signal, renew }: Acquiring,
    read: (reply: unknown) => AllDecision,
    down: () => AllDecision,
  ): Promise<{ decision: AllDecision; takenAt: number }> {
    const { keys } = call;
    const waitId = id ?? randomUUID();
    let takenAt = performance.now();
    let [mayHold, blocked] = [id !== undefined, false];
    const onBlock = () => (mayHold = blocked = true);
    const isFinal = (reply: unknown) => {
      const { granted, waitMs } = read(reply);
      return granted || waitMs === null;
    };
    const decide = async (leave: AbortSignal) => {
      let holds = false;
      try {
        const { reply, before } = await this.servers.inLine(call, isFinal, { waitMs, id, waitId, signal: leave, onBlock });
        const decision = read(reply);
        holds = decision.granted;
        leave.throwIfAborted();
        if (holds && blocked && renew) {
          takenAt = performance.now();
          await renew();
        }
        if (holds && blocked && id === undefined) this.#forgetId(keys, waitId, decision.decisions);
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
   * Gives back what an id holds on these keys. If the server does not know the id, the call itself may still be on its way to the
   * server, on another connection: then it is given back again a little later, and once more. Not so if the id is not this package's
   * own, because the program may use it again.
   */
  giveBack(keys: Word[], id: string, ownId: boolean) {
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

  /** Lets keys forget an id, whose units stay charged. */
  #forgetId(keys: Word[], id: string, decisions: readonly Decision[]) {
    for (const [at, key] of keys.entries()) {
      const call = { name: 'RL.SETTLE', args: [key, id, String(decisions[at].granted)], keys: [key] };
      this.later(`a key remembers the id ${id} for longer`, () => this.servers.send(call, { repeat: true, ends: true }));
    }
  }

  /** Runs a call that may wait. The caller's signal ends it, and so does `close`. */
  async #waiting<T>(signal: AbortSignal | undefined, action: (signal: AbortSignal) => Promise<T>): Promise<T> {
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
