import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { isRefusedForNow, isReply, RateLimitError, translated } from './errors.js';

/** @typedef {import('./adapters/adapter.js').Adapter} Adapter */
/** @typedef {import('./adapters/adapter.js').Call} Call */

/** The pause before a call is repeated, at first and at most. */
const FIRST_PAUSE_MS = 20;
const LONGEST_PAUSE_MS = 200;

/**
 * The reply to a call.
 *
 * @typedef {object} Answer
 * @property {unknown} reply
 * @property {boolean} before whether the call was sent before, and may have been executed then, without a reply
 */

/** Sends calls, and repeats those that may be repeated. */
export class Caller {
  #adapter;
  #patienceMs;

  /**
   * @param {Adapter} adapter
   * @param {number} patienceMs
   */
  constructor(adapter, patienceMs) {
    this.#adapter = adapter;
    this.#patienceMs = patienceMs;
  }

  /**
   * Sends a call. With `repeat`, it is sent again when no reply came, or when the server refused for now, until the patience
   * ends.
   *
   * @param {Call} call
   * @param {{ repeat?: boolean, patienceMs?: number }} [options]
   * @returns {Promise<Answer>}
   */
  async send(call, { repeat = false, patienceMs = this.#patienceMs } = {}) {
    const deadline = performance.now() + patienceMs;
    let before = false;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        return { reply: await this.#adapter.send(call, deadline - performance.now()), before };
      } catch (error) {
        const refused = isRefusedForNow(error);
        if (!refused && !isReply(error)) before = true;
        const mayRepeat = repeat && (refused || isLost(error));
        if (!mayRepeat || performance.now() + pause >= deadline) throw withOutcome(error, before, call);
        await sleep(pause);
      }
    }
  }

  /**
   * Sends a call that may wait in line. At first it is sent without `BLOCK` on the shared connection, and if it is denied, with
   * `BLOCK` on a connection of its own. A call that the server ends, because the key's slot moves or a replica takes over,
   * goes on waiting: nothing was charged. A call without a reply is repeated only with `repeat`. The time in line does not
   * count for the patience.
   *
   * @param {(block: string[]) => Call} makeCall
   * @param {(reply: unknown) => boolean} isFinal whether a reply without `BLOCK` is an answer: granted, or never granted
   * @param {{ waitMs: number, repeat?: boolean, signal?: AbortSignal }} options
   * @returns {Promise<Answer>}
   */
  async inLine(makeCall, isFinal, { waitMs, repeat = false, signal }) {
    const end = performance.now() + waitMs;
    let deadline = performance.now() + this.#patienceMs;
    let [before, asked] = [false, false];
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      signal?.throwIfAborted();
      const began = performance.now();
      /** @type {number | undefined} */
      let joinedAt;
      const joined = () => (joinedAt = performance.now());
      try {
        if (!asked || end - began < 1) {
          const reply = await this.#adapter.send(makeCall([]), deadline - began);
          if (waitMs < 1 || isFinal(reply) || end - performance.now() < 1) return { reply, before };
          asked = true;
        }
        signal?.throwIfAborted();
        const left = Math.ceil(end - performance.now());
        const patienceMs = deadline - performance.now();
        const reply = await this.#adapter.wait(makeCall(['BLOCK', `${left}ms`]), left, patienceMs, joined, signal);
        return { reply, before };
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (joinedAt !== undefined) deadline += performance.now() - joinedAt;
        const refused = isRefusedForNow(error);
        if (!refused && !isReply(error)) before = true;
        const mayRepeat = refused || (repeat && isLost(error));
        if (!mayRepeat || performance.now() + pause >= deadline) throw withOutcome(error, before, makeCall([]));
        // On the shared connection, a client follows a slot that has moved, and finds a new primary.
        asked = false;
        await sleep(pause, undefined, { signal }).catch(() => {});
      }
    }
  }
}

/**
 * Whether an error says that no reply came: one of the connection, and none of the program.
 *
 * @param {unknown} error
 */
function isLost(error) {
  if (error instanceof RateLimitError || error instanceof TypeError || error instanceof RangeError) return false;
  return error instanceof Error && !isReply(error);
}

/**
 * @param {unknown} error
 * @param {boolean} mayHaveRun
 * @param {Call} call
 */
function withOutcome(error, mayHaveRun, { keys }) {
  // A mistake of the program or of this package must not look like a server that is down.
  if (error instanceof TypeError || error instanceof RangeError) return error;
  const result = translated(error, keys.join(', '));
  if (mayHaveRun) unknown.add(result);
  return result;
}

/** @type {WeakSet<object>} */
const unknown = new WeakSet();

/**
 * Whether the server may have executed a call that has ended with this error.
 *
 * @param {unknown} error
 */
export function mayHaveRun(error) {
  return typeof error === 'object' && error !== null && unknown.has(error);
}
