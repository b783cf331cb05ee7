/** @typedef {import('./limits.js').Key} Key */
/** @typedef {Key | null | undefined} MaybeKey null or undefined: the request is not limited */
/** @typedef {import('./decision.js').Decision} Decision */
/**
 * What Express and connect have in common.
 *
 * @typedef {import('node:http').IncomingMessage & { rateLimit?: Decision[] }} Request
 * @typedef {import('node:http').ServerResponse} Response
 */
/**
 * Express middleware: takes units for each request, sets the header fields of the decision, and answers 429 if it is denied.
 * An error, such as `Down`, is passed on to `next`; it has a `status`. A request whose key is null or undefined is not limited.
 *
 * Several limits of a route each add their item to `RateLimit-Policy` and `RateLimit`; the other fields are those of the last
 * one.
 *
 * @template {Request} R
 * @param {{ take(key: Key, cost?: number): Promise<Decision> }} limit a limit of a rate, a wallet or a cached limit
 * @param {{ key: (request: R) => MaybeKey | Promise<MaybeKey>, cost?: (request: R) => number | Promise<number> }} options
 */
export function rateLimit<R extends Request>(limit: {
    take(key: Key, cost?: number): Promise<Decision>;
}, { key, cost }: {
    key: (request: R) => MaybeKey | Promise<MaybeKey>;
    cost?: (request: R) => number | Promise<number>;
}): (request: R, response: Response, next: (error?: unknown) => void) => Promise<void | import("http").ServerResponse<import("http").IncomingMessage>>;
export type Key = import("./limits.js").Key;
/**
 * null or undefined: the request is not limited
 */
export type MaybeKey = Key | null | undefined;
export type Decision = import("./decision.js").Decision;
/**
 * What Express and connect have in common.
 */
export type Request = import("node:http").IncomingMessage & {
    rateLimit?: Decision[];
};
/**
 * What Express and connect have in common.
 */
export type Response = import("node:http").ServerResponse;
