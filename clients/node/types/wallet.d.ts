/** @typedef {{ reply: number[], short: boolean }} Fetched */
/**
 * Decides in the process, from units that it has fetched from the server in batches. So most calls take no round trip. It never
 * spends more than the server has charged. What it holds is charged before it is spent: other processes are denied these units
 * meanwhile, at most one batch for each process and key.
 */
export class Wallet {
    /**
     * @param {RateLimit} limit
     * @param {import('./limits.js').Shared} shared
     * @param {number} batch
     * @param {number} idleMs
     */
    constructor(limit: RateLimit, shared: import("./limits.js").Shared, batch: number, idleMs: number);
    /**
     * Takes units: all of them, or none.
     *
     * @param {Key} key
     * @param {number} [cost]
     * @returns {Promise<Decision>}
     */
    take(key: Key, cost?: number): Promise<Decision>;
    /** Gives back what is left, and waits for it. Calls after this are errors. */
    close(): Promise<void>;
    #private;
}
export type Key = import("./limits.js").Key;
export type RateLimit = import("./limits.js").RateLimit;
export type Word = import("./policies.js").Word;
/**
 * Units that the server has charged for one id, and of which `left` may still be spent, until `until` on the monotonic clock.
 */
export type Batch = {
    id: string;
    granted: number;
    left: number;
    until: number;
};
export type Fetched = {
    reply: number[];
    short: boolean;
};
import { Decision } from './decision.js';
