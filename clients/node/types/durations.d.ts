/**
 * A duration: a number of seconds, or text with a unit, such as `30s`; `m` alone is `1m`. Undefined if it is neither.
 *
 * @param {unknown} value
 * @returns {Duration | undefined}
 */
export function parsed(value: unknown): Duration | undefined;
/**
 * @param {unknown} value
 * @param {string} name
 */
export function period(value: unknown, name: string): Duration;
/**
 * How long a call may wait, in milliseconds. 0 and undefined mean that it does not wait.
 *
 * @param {unknown} value
 */
export function waitMs(value: unknown): number;
/**
 * An offset of windows, as the server takes it: a duration less than the period, with or without a sign.
 *
 * @param {unknown} value
 * @param {Duration} period
 */
export function offset(value: unknown, period: Duration): string;
/** @param {unknown} value */
export function shown(value: unknown): string;
/** A duration, as microseconds and as the server takes it, in the largest unit that divides it. */
export class Duration {
    /** @param {bigint} us */
    constructor(us: bigint);
    us: bigint;
    text: string;
    get ms(): number;
    toString(): string;
    /** As text, because JSON has no `bigint`. */
    toJSON(): string;
    /** Whole seconds, rounded up, at least 1. */
    get wholeSeconds(): number;
}
