/**
 * The header fields for HTTP of several decisions.
 *
 * @param {readonly Decision[]} decisions
 * @returns {Record<string, string>}
 */
export function headers(decisions: readonly Decision[]): Record<string, string>;
/**
 * The integers of a reply. Some clients return them as text, if they are told to.
 *
 * @param {unknown} reply
 * @returns {number[]}
 */
export function integers(reply: unknown): number[];
/** @param {unknown} value */
export function integer(value: unknown): number;
/** @param {unknown} reply */
export function inShort(reply: unknown): string;
/** @typedef {import('./policies.js').Policy} Policy */
/**
 * What the server decided about one limit.
 */
export class Decision {
    /**
     * @param {string} name the name of the limit
     * @param {Policy} policy
     * @param {readonly number[]} reply the five integers
     * @param {{ counted?: boolean }} [options]
     */
    constructor(name: string, policy: Policy, [granted, limit, remaining, waitMs, resetMs]: readonly number[], { counted }?: {
        counted?: boolean;
    });
    /** The name of the limit. */
    name: string;
    /** The policy of the limit. */
    policy: import("./policies.js").Policy;
    /** The units that were granted; 0 if the call was denied. */
    granted: number;
    /** The units that may be taken at once: the limit, the burst or the capacity. */
    limit: number;
    /** The units that could be taken right now. */
    remaining: number;
    /** Milliseconds: denied: until this call would be granted, null means never; granted: 0, or until a booking begins. */
    waitMs: number | null;
    /** Milliseconds until no unit is in use. */
    resetMs: number;
    /** Whether the call may go on. True also for a refund that found nothing to give back. */
    allowed: boolean;
    /** False if the server gave no decision, and the call was let through because of `onDown: 'open'`. */
    counted: boolean;
    /** `waitMs` in seconds. */
    get wait(): number | null;
    /** `resetMs` in seconds. */
    get reset(): number;
    /**
     * The header fields for HTTP. With several decisions, `RateLimit-Policy` and `RateLimit` list all of them, and the others
     * describe the one that decides: the denied one with the longest wait, or else the one with the fewest remaining units.
     *
     * @param {readonly Decision[]} [all]
     * @returns {Record<string, string>}
     */
    headers(all?: readonly Decision[]): Record<string, string>;
    toString(): string;
    /** Throws `RateLimited` if the call was denied. */
    throwIfDenied(): this;
}
/** What the server decided about several limits, of which all are charged, or none. */
export class AllDecision {
    /**
     * @param {boolean} granted
     * @param {number} waitMs
     * @param {readonly Decision[]} decisions
     * @param {string | undefined} id
     * @param {boolean} [counted]
     */
    constructor(granted: boolean, waitMs: number, decisions: readonly Decision[], id: string | undefined, counted?: boolean);
    /** Whether all limits were granted. */
    granted: boolean;
    /** Milliseconds until this call would be granted; null means never. */
    waitMs: number | null;
    /** One decision for each limit, in the order of the call. */
    decisions: readonly Decision[];
    /** The id of the charge, if it has one. */
    id: string | undefined;
    counted: boolean;
    get allowed(): boolean;
    get wait(): number | null;
    /** The names of the limits that refused; of all, if none did. */
    get name(): string;
    headers(): Record<string, string>;
    toString(): string;
    /** Throws `RateLimited` if the call was denied. */
    throwIfDenied(): this;
}
export type Policy = import("./policies.js").Policy;
