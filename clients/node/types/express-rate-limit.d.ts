/**
 * A store for express-rate-limit: a fixed window, one call for each request. The key on the server is the prefix of the
 * `Limits`, the name, a colon and the key of express-rate-limit. The default name is `store:` and the window in milliseconds;
 * two limits with the same window need two names. With `resetExpiryOnChange`, each request begins the window anew. If the
 * server gives no decision, express-rate-limit passes the error to `next`, or lets the request through with
 * `passOnStoreError: true`. With `onDown: 'open'` of the `Limits`, the request counts as the first of its window, and is let
 * through.
 */
export class RedisRlStore {
    /**
     * @param {Limits} limits
     * @param {{ name?: string, resetExpiryOnChange?: boolean }} [options]
     */
    constructor(limits: Limits, { name, resetExpiryOnChange }?: {
        name?: string;
        resetExpiryOnChange?: boolean;
    });
    /** express-rate-limit reads this, to detect requests that are counted twice. */
    prefix: string;
    /** All processes count together. */
    localKeys: boolean;
    /** @param {{ windowMs: number }} options */
    init({ windowMs }: {
        windowMs: number;
    }): void;
    /** @param {string} key */
    increment(key: string): Promise<{
        totalHits: number;
        resetTime: Date;
    }>;
    /** @param {string} key */
    decrement(key: string): Promise<void>;
    /** @param {string} key */
    get(key: string): Promise<{
        totalHits: number;
        resetTime: Date;
    } | undefined>;
    /** @param {string} key */
    resetKey(key: string): Promise<void>;
    /** Deletes the counts of all keys of this store, on all nodes. It searches all keys of the server by `SCAN`. */
    resetAll(): Promise<void>;
    #private;
}
export type Limits = import("./limits.js").Limits;
export type RateLimit = import("./limits.js").RateLimit;
