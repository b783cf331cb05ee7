/** A policy: how many units, in which time, by which algorithm. It is a value, without a connection. */
export class Policy {
    /**
     * @param {string} algorithm
     * @param {number} limit
     * @param {Duration} period
     * @param {readonly string[]} options
     */
    constructor(algorithm: string, limit: number, period: Duration, options: readonly string[]);
    /** The name of the algorithm: `FIXED`, `SLIDE`, `GCRA`, `BUCKET` or `LEASE`. */
    algorithm: string;
    /** The units for each period; for a lease, the units that may be held at a time. */
    limit: number;
    /** The period; for a lease, its time to live. */
    period: import("./durations.js").Duration;
    /** The options, as the server takes them. */
    options: readonly string[];
    /** The units that may be taken at once. */
    get capacity(): number;
    /** The policy as the server takes it: the limit, the period and the options. */
    words(): string[];
    /**
     * The limiter's command for this key.
     *
     * @param {Word} key
     * @returns {Word[]}
     */
    command(key: Word): Word[];
    /**
     * Whether both are the same policy. `60s` and `1m` are the same period.
     *
     * @param {unknown} other
     */
    equals(other: unknown): boolean;
    /** The limit and the period: `10/m`, `100/15m`. */
    get rate(): string;
    toString(): string;
    toJSON(): {
        algorithm: string;
        limit: number;
        period: string;
        options: readonly string[];
    };
    #private;
}
/** A fixed window: `limit` units in each period, which begins with the first grant, or is aligned to the clock. */
export class Fixed extends Policy {
    /**
     * @param {string} perPeriod such as `1000/1d`
     * @param {{ align?: string | number }} [options] `align`: windows begin at each multiple of the period since 1970 (UTC),
     *     shifted by this duration, which may have a sign: `-8h`
     */
    constructor(perPeriod: string, { align, ...others }?: {
        align?: string | number;
    });
}
/** A sliding window: no window of one period, wherever it begins, has more than `limit` units. */
export class Slide extends Policy {
    /**
     * @param {string} perPeriod such as `100/m`
     * @param {{ segments?: number }} [options] `segments`: the number of ticks in a period; fewer make the log smaller
     */
    constructor(perPeriod: string, { segments, ...others }?: {
        segments?: number;
    });
}
/** The generic cell rate algorithm: units come back evenly, and up to `burst` units may be taken at once. */
export class Gcra extends Policy {
    /**
     * @param {string} perPeriod such as `10/m`
     * @param {{ burst?: number }} [options] `burst`: the units that may be taken at once; the default is the limit
     */
    constructor(perPeriod: string, { burst, ...others }?: {
        burst?: number;
    });
    #private;
}
/** A bucket: tokens flow in at the rate, and the bucket holds `capacity` of them. */
export class Bucket extends Policy {
    /**
     * @param {string} perPeriod such as `10/h`
     * @param {{ capacity?: number, step?: boolean }} [options] `capacity`: the tokens that the bucket holds; the default is the
     *     limit. `step`: all tokens of a period arrive at its end
     */
    constructor(perPeriod: string, { capacity, step, ...others }?: {
        capacity?: number;
        step?: boolean;
    });
    #private;
}
/** Units that are held until they are released, or until `ttl` has passed since the last renewal: at most `limit` at a time. */
export class Lease extends Policy {
    /**
     * @param {number} limit
     * @param {number | string} ttl seconds, or text such as `30s`
     */
    constructor(limit: number, ttl: number | string);
    /** The time to live. */
    get ttl(): import("./durations.js").Duration;
}
export type Duration = import("./durations.js").Duration;
/**
 * a word of a command
 */
export type Word = string | Buffer;
