import { performance } from 'node:perf_hooks';
import { NotAllowed, Unavailable } from './errors.js';

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;

/**
 * Keeps calls from a server that was found down: then one call at a time asks it again, after a pause that doubles each time. The
 * first success ends that.
 */
export class Breaker {
  /** How often the server was found down in a row. */
  #failures = 0;
  #cause?: Unavailable;
  #askAt = 0;
  #asking = false;

  get isDown() {
    return this.#failures > 0;
  }

  /**
   * Returns what `failed` and `left` need, or throws why the call must not ask the server. Calls that give back or renew `always` may;
   * what they find does not make the pause longer.
   */
  enter(always: boolean): number {
    if (this.#failures) {
      if (always) return -1;
      if (this.#asking || performance.now() < this.#askAt) {
        const Class = this.#cause instanceof NotAllowed ? NotAllowed : Unavailable;
        throw new Class(`the server was found down, and is asked again soon: ${this.#cause?.message}`, { cause: this.#cause });
      }
      this.#asking = true;
    }
    return this.#failures;
  }

  succeeded() {
    this.#failures = 0;
    this.#asking = false;
  }

  /** The server was found down. What calls find that began before it was found down does not count. */
  failed(entered: number, cause: Unavailable) {
    if (entered !== this.#failures) return;
    this.#cause = cause;
    const pause = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#failures);
    this.#askAt = performance.now() + pause * (0.75 + Math.random() / 4);
    this.#failures++;
    this.#asking = false;
  }

  /** The call has ended. If it has found out nothing about the server, another one may ask. */
  left(entered: number) {
    if (entered && entered === this.#failures) this.#asking = false;
  }
}
