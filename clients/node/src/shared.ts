import { setMaxListeners } from 'node:events';
import { performance } from 'node:perf_hooks';
import { none, type Word } from './checks.js';
import { type AnyClient, clientOf } from './clients/any.js';
import { follow, pause } from './clock.js';
import type { AllDecision, Decision } from './decision.js';
import { DAY_MS, optionMs, shown, type Time } from './durations.js';
import { Closed, InvalidLimit, messageOf, Unavailable } from './errors.js';
import { LocalLimiter } from './local.js';
import { Gcra } from './policies.js';
import { Servers } from './servers.js';
import type { Wallet } from './wallet.js';

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

const LOG_PAUSE_MS = 1000;
/** The pauses before what an id may hold is given back once more. */
const GIVE_BACK_PAUSES_MS = [100, 900];

/** What the limits of one `Limits` share. */
export class Shared {
  /** What decides without the server, if it is a limiter in this process. */
  readonly local;
  readonly #background = new Set<Promise<void>>();
  /** When something of a kind was logged last. */
  readonly #logged = new Map<string, number>();
  readonly #ending = new AbortController();
  /** The calls that may wait. */
  readonly #waits = new Set<Promise<unknown>>();
  readonly wallets = new Set<Wallet>();
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
    none(others, 'Limits');
    if (typeof prefix !== 'string') throw new InvalidLimit(`prefix must be text, not ${shown(prefix)}`);
    if (!(onDown === 'closed' || onDown === 'open' || onDown instanceof Gcra)) {
      throw new InvalidLimit(`onDown must be 'closed', 'open' or a Gcra, not ${shown(onDown)}`);
    }
    const timeoutMs = optionMs(timeout, 'timeout', 1, DAY_MS);
    this.repeatDenialsMs = optionMs(repeatDenials, 'repeatDenials', 0, 1000);
    const known = clientOf(client);
    this.servers = new Servers(known, timeoutMs, optionMs(connectTimeout, 'connectTimeout', 1, DAY_MS));
    this.prefix = known.prefix + prefix;
    this.goesOn = onDown !== 'closed';
    this.local = onDown instanceof Gcra ? new LocalLimiter(onDown) : undefined;
  }

  checkOpen() {
    if (this.closed) throw new Closed('the limits are closed');
  }

  /**
   * What a call returns, or, if the server gave no decision and calls may go on then, what `instead` returns. If that is a grant, the
   * call was let through.
   */
  async orDown<T extends Decision | AllDecision | number | null>(call: () => Promise<T>, instead: () => T): Promise<T> {
    this.checkOpen();
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      this.log('down', !this.goesOn ? 'calls fail' : this.local ? 'this process limits by itself' : 'calls are let through', error);
      if (!this.goesOn) throw error;
      const decided = instead();
      if (typeof decided === 'object' && decided?.granted) this.letThrough++;
      return decided;
    }
  }

  /** Logs a warning of the process, once a second at most for each kind. */
  log(kind: string, message: string, error: unknown) {
    const now = performance.now();
    if (now - (this.#logged.get(kind) ?? -Infinity) < LOG_PAUSE_MS) return;
    this.#logged.set(kind, now);
    process.emitWarning(`redis-rl: ${message}: ${messageOf(error)}`, 'RateLimitWarning');
  }

  /** Does something that throws nothing: its errors are logged. */
  later(what: string, action: () => Promise<unknown>) {
    const task = action().then(() => {}, (error) => this.log('later', what, error));
    this.#background.add(task);
    void task.finally(() => this.#background.delete(task));
    return task;
  }

  /** Waits until nothing is under way in the background. */
  async idle() {
    while (this.#background.size) await Promise.all(this.#background);
  }

  /**
   * Gives back what an id holds on these keys. If the server does not know the id, the call itself may still be on its way to the
   * server, on another connection: then it is given back again a little later, and once more. Not so if the id is not this package's
   * own, because the program may use it again.
   */
  giveBack(keys: Word[], id: string, ownId: boolean) {
    for (const key of keys) {
      this.later(`what ${id} has charged was not given back`, async () => {
        for (const ms of [...(ownId ? GIVE_BACK_PAUSES_MS : []), undefined]) {
          const { reply } = await this.servers.end('RL.RELEASE', key, id);
          if (reply !== null || ms === undefined) return;
          // Nobody waits for this, and it must not keep the process for long.
          await pause(ms, this.#ending.signal);
        }
      });
    }
  }

  /** Runs a call that may wait. The caller's signal ends it, and so does `close`. */
  async waiting<T>(signal: AbortSignal | undefined, action: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const [leaver, ended] = [new AbortController(), new AbortController()];
    for (const one of [signal, this.#ending.signal]) follow(one, leaver, ended.signal);
    const wait = action(leaver.signal);
    this.#waits.add(wait);
    try {
      return await wait;
    } finally {
      this.#waits.delete(wait);
      ended.abort();
    }
  }

  async close() {
    this.closed = true;
    this.#ending.abort(new Closed('the limits were closed'));
    await Promise.allSettled(this.#waits);
    await Promise.all([...this.wallets].map((wallet) => wallet.close()));
    await this.idle();
    this.servers.close();
  }
}
