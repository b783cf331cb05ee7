/** The longest that a timer of Node.js can wait. */
const LONGEST_MS = 2 ** 31 - 1;

/** Runs `action` after this time; returns a function that cancels it. @param {number} ms @param {() => void} action */
export function later(ms, action) {
  const timer = setTimeout(action, Math.min(LONGEST_MS, Math.max(0, Math.ceil(ms))));
  return () => clearTimeout(timer);
}

/** No reply, or no connection, has come in time. */
export class Late extends Error {}

/**
 * The outcome of `promise`, or an error after this time, or when the signal is aborted.
 * @template T @param {number} ms @param {AbortSignal | undefined} signal @param {Promise<T>} promise @returns {Promise<T>}
 */
export function limited(ms, signal, promise) {
  return new Promise((resolve, reject) => {
    // If the loop of events was busy, a reply may be here already, and has its turn before `setImmediate`.
    const cancel = later(ms, () => setImmediate(() => end(() => reject(new Late(`none within ${Math.ceil(ms)} ms`)))));
    const abort = () => end(() => reject(signal?.reason));
    const end = (/** @type {() => void} */ outcome) => {
      cancel();
      signal?.removeEventListener('abort', abort);
      outcome();
    };
    signal?.addEventListener('abort', abort);
    if (signal?.aborted) abort();
    promise.then((value) => end(() => resolve(value)), (error) => end(() => reject(error)));
  });
}

/**
 * Resolves after this time, or when the signal is aborted.
 * @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>}
 */
export function pause(ms, signal) {
  return limited(ms, signal, new Promise(() => {})).catch(() => {});
}
