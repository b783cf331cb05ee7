import { NoReply } from '../errors.js';

/** @typedef {import('../policies.js').Word} Word */

/**
 * A command of the module.
 *
 * @typedef {object} Call
 * @property {string} name
 * @property {Word[]} args
 * @property {Word[]} keys the keys among the arguments
 * @property {boolean} [replica] whether a replica may serve it
 */

/**
 * What this package needs of a client. Each method sends the call once, and never again: only the server's redirections in a
 * cluster are followed, because a node that redirects a call has not executed it. Without a reply, it throws `NoReply`; an
 * error that the server replies is thrown as the client reports it.
 *
 * @typedef {object} Adapter
 * @property {(call: Call, patienceMs: number, signal?: AbortSignal) => Promise<unknown>} send on the shared connection
 * @property {(call: Call, waitMs: number, patienceMs: number, joined: () => void, signal?: AbortSignal) => Promise<unknown>}
 *     wait on a connection of its own to the node of the key, for a reply that may take `waitMs`. `joined` is called when the
 *     call is sent. When it ends, the connection is closed.
 * @property {NodeName} nodeName the node that has the key, as far as the client knows
 * @property {Track} [track] opens two connections to this node: one for calls whose keys are tracked, and one on which the
 *     server says that such a key has changed; missing if the client does not report this
 */

/**
 * @typedef {(call: Call) => string} NodeName
 */

/**
 * @typedef {(call: Call, patienceMs: number, listener: Invalidations) => Promise<Tracker>} Track
 */

/**
 * @typedef {object} Invalidations
 * @property {(key: Buffer | null) => void} changed the key has changed; null: all keys may have
 * @property {() => void} lost the connection is lost: keys may have changed without a word
 */

/**
 * @typedef {object} Tracker
 * @property {(call: Call, patienceMs: number) => Promise<unknown>} send
 * @property {() => void} close
 */

/** The client waits for a reply this much longer than the wait that it asks the server for. */
export const MARGIN_MS = 5_000;
/** The longest that a timer of Node.js can wait. */
const LONGEST_MS = 2 ** 31 - 1;

/**
 * Runs `action` after this time; returns a function that cancels it.
 *
 * @param {number} ms
 * @param {() => void} action
 */
export function later(ms, action) {
  const timer = setTimeout(action, Math.min(LONGEST_MS, Math.max(0, Math.ceil(ms))));
  return () => clearTimeout(timer);
}

/**
 * Ends an action after this time, or when the signal is aborted.
 *
 * @template T
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @param {() => Promise<T>} action
 * @returns {Promise<T>}
 */
export async function limited(ms, signal, action) {
  signal?.throwIfAborted();
  let end = () => {};
  /** @type {Promise<never>} */
  const ended = new Promise((_, reject) => {
    const cancel = later(ms, () => reject(new NoReply(`no reply within ${Math.ceil(ms)} ms`)));
    const abort = () => reject(signal?.reason);
    signal?.addEventListener('abort', abort);
    end = () => {
      cancel();
      signal?.removeEventListener('abort', abort);
    };
  });
  try {
    return await Promise.race([action(), ended]);
  } finally {
    end();
  }
}

/**
 * The hash slot of a key: CRC16 of its hash tag, or of the whole key.
 *
 * @param {Word} key
 */
export function slotOf(key) {
  let bytes = Buffer.from(key);
  const open = bytes.indexOf('{');
  const close = open < 0 ? -1 : bytes.indexOf('}', open + 1);
  if (close > open + 1) bytes = bytes.subarray(open + 1, close);
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
  }
  return crc % 16384;
}

/** @type {Map<number, string>} */
const texts = new Map();

/**
 * A text that hashes to this slot.
 *
 * @param {number} slot
 */
export function textIn(slot) {
  let text = texts.get(slot);
  if (text === undefined) {
    for (let n = 0; slotOf((text = String(n))) !== slot; n++);
    texts.set(slot, text);
  }
  return text;
}

/**
 * The id of a server's run, in its INFO.
 *
 * @param {string} info
 */
export function runId(info) {
  return /^run_id:(\w+)/m.exec(info)?.[1];
}
