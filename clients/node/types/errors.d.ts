/**
 * Whether an error is a reply of the server. Such a reply begins with a code in capital letters; errors of connections do not.
 *
 * @param {unknown} error
 * @returns {boolean}
 */
export function isReply(error: unknown): boolean;
/**
 * Whether the server has refused a call, and may accept it soon.
 *
 * @param {unknown} error
 */
export function isRefusedForNow(error: unknown): boolean;
/**
 * The error of this package for an error of a client library.
 *
 * @param {unknown} error
 * @param {string} keys the keys of the call
 * @returns {RateLimitError}
 */
export function translated(error: unknown, keys: string): RateLimitError;
/** @typedef {import('./decision.js').Decision} Decision */
/** @typedef {import('./decision.js').AllDecision} AllDecision */
/** Any error of this package. */
export class RateLimitError extends Error {
    /**
     * @param {string} message
     * @param {ErrorOptions} [options]
     */
    constructor(message: string, options?: ErrorOptions);
}
/** An argument that the server would refuse. Thrown before a call is made. */
export class InvalidArgument extends RateLimitError {
}
/** The policy or the name of a limit is wrong. */
export class InvalidLimit extends InvalidArgument {
}
/** A key is text or bytes, and not empty. */
export class InvalidKey extends InvalidArgument {
}
/** A cost is a whole number from 1 to 1e12. */
export class InvalidCost extends InvalidArgument {
}
/** A wait is a duration of at most a day. */
export class InvalidWait extends InvalidArgument {
}
/** An id has 1 to 64 bytes. */
export class InvalidId extends InvalidArgument {
}
/** The server has refused the arguments of a call, or the client's password or rights. */
export class Refused extends RateLimitError {
}
/** The call was denied. */
export class RateLimited extends RateLimitError {
    /** @param {Decision | AllDecision} decision */
    constructor(decision: Decision | AllDecision);
    /** What the server decided. */
    decision: import("./decision.js").Decision | import("./decision.js").AllDecision;
    /** The status for HTTP. */
    status: number;
    /** Seconds until the same call would be granted; null means never. */
    get retryAfter(): number | null;
    /** The header fields for HTTP. */
    headers(): Record<string, string>;
}
/** A lease has lapsed, or its key was deleted. Another holder may have its units. */
export class LeaseLost extends RateLimitError {
    /**
     * @param {string} name
     * @param {string} id
     * @param {ErrorOptions} [options]
     */
    constructor(name: string, id: string, options?: ErrorOptions);
    id: string;
}
/** The server gave no decision: no connection, no reply in time, or an error such as LOADING, READONLY or OOM. */
export class Down extends RateLimitError {
    /** The status for HTTP. */
    status: number;
}
/** The server does not know the command: it has not loaded the module, or one that is too old for this package. */
export class NoModule extends RateLimitError {
}
/** The key holds something else: a list, or a limiter of another algorithm. */
export class WrongType extends RateLimitError {
}
/** The reply has another shape than that of the module. */
export class UnexpectedReply extends RateLimitError {
}
/**
 * No reply has come: the server may have executed the command, or not. Adapters throw it, and callers see it as the cause of
 * `Down`.
 */
export class NoReply extends Error {
    /**
     * @param {string} message
     * @param {ErrorOptions} [options]
     */
    constructor(message: string, options?: ErrorOptions);
}
export type Decision = import("./decision.js").Decision;
export type AllDecision = import("./decision.js").AllDecision;
