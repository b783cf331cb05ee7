/**
 * A call with this cost, or a higher one, is denied until `until` on the monotonic clock, unless the key changes.
 *
 * @typedef {{ cost: number, limit: number, remaining: number, until: number, resetAt: number }} Denial
 */
/**
 * The denials of the last calls, by key. The server tells when one of these keys changes, because they are read on a
 * connection with client tracking.
 */
export class Denials {
    /**
     * @param {Track} track
     * @param {NodeName} nodeName
     * @param {number} patienceMs
     */
    constructor(track: Track, nodeName: NodeName, patienceMs: number);
    /**
     * The denial that a call would get; undefined if the server has to be asked.
     *
     * @param {string} name
     * @param {number} cost
     * @param {number} now
     */
    find(name: string, cost: number, now: number): Denial | undefined;
    /** How many keys are remembered. */
    get size(): number;
    /**
     * Reads the denial again on a connection with tracking, and remembers it. A denied call itself is not tracked, because the
     * server tracks only what commands read that do not write.
     *
     * @param {string} name
     * @param {Call} peek
     * @param {number} cost
     */
    remember(name: string, peek: Call, cost: number): Promise<void>;
    /** Closes the connections. */
    close(): Promise<void>;
    #private;
}
/**
 * A limit whose denials are remembered. After a denial, calls for the same key with the same cost or a higher one are denied
 * in the process, without a call to the server, until the wait is over or the key changes. A lower cost is asked.
 */
export class CachedLimit {
    /**
     * @param {RateLimit} limit
     * @param {Denials} denials
     */
    constructor(limit: RateLimit, denials: Denials);
    /** How many keys are remembered, of all cached limits that share the connections. */
    get size(): number;
    /**
     * Takes units: all of them, or none.
     *
     * @param {Key} key
     * @param {number} [cost]
     * @returns {Promise<Decision>}
     */
    take(key: Key, cost?: number): Promise<Decision>;
    /**
     * Takes, and throws `RateLimited` if the call is denied.
     *
     * @param {Key} key
     * @param {{ cost?: number }} [options]
     */
    protect(key: Key, { cost }?: {
        cost?: number;
    }): Promise<Decision>;
    #private;
}
export type Call = import("./adapters/adapter.js").Call;
export type NodeName = import("./adapters/adapter.js").NodeName;
export type Track = import("./adapters/adapter.js").Track;
export type Tracker = import("./adapters/adapter.js").Tracker;
export type Key = import("./limits.js").Key;
export type RateLimit = import("./limits.js").RateLimit;
/**
 * A call with this cost, or a higher one, is denied until `until` on the monotonic clock, unless the key changes.
 */
export type Denial = {
    cost: number;
    limit: number;
    remaining: number;
    until: number;
    resetAt: number;
};
import { Decision } from './decision.js';
