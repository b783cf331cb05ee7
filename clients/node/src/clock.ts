/** The longest that a timer of Node.js can wait. */
const LONGEST_MS = 2 ** 31 - 1;

/** Runs `action` after this time; returns a function that cancels it. */
export function later(ms: number, action: () => void) {
  const timer = setTimeout(action, Math.min(LONGEST_MS, Math.max(0, Math.ceil(ms))));
  return () => clearTimeout(timer);
}

/** No reply, or no connection, has come in time. */
export class Late extends Error {}

/** The outcome of `promise`, or an error after this time, or when the signal is aborted. */
export function limited<T>(ms: number, signal: AbortSignal | undefined, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    // If the loop of events was busy, a reply may be here already, and has its turn before `setImmediate`.
    const cancel = later(ms, () => setImmediate(() => end(() => reject(new Late(`none within ${Math.ceil(ms)} ms`)))));
    const abort = () => end(() => reject(signal?.reason));
    const end = (outcome: () => void) => {
      cancel();
      signal?.removeEventListener('abort', abort);
      outcome();
    };
    signal?.addEventListener('abort', abort);
    if (signal?.aborted) abort();
    promise.then((value) => end(() => resolve(value)), (error) => end(() => reject(error)));
  });
}

/** Aborts what `aborter` controls when a signal is aborted, until `ended` is. */
export function follow(signal: AbortSignal | undefined, aborter: AbortController, ended: AbortSignal) {
  const abort = () => aborter.abort(signal?.reason);
  signal?.addEventListener('abort', abort, { signal: ended });
  if (signal?.aborted) abort();
}

/** Resolves after this time, or when the signal is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return limited(ms, signal, new Promise<void>(() => {})).catch(() => {});
}
