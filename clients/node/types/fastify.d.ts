/** @typedef {import('./limits.js').Key} Key */
/** @typedef {Key | null | undefined} MaybeKey null or undefined: the request is not limited */
/** @typedef {import('./decision.js').Decision} Decision */
/**
 * A hook for Fastify (`onRequest` or `preHandler`): takes units for each request, sets the header fields of the decision, and
 * answers 429 if it is denied. An error, such as `Down`, is thrown; it has a `statusCode`. A request whose key is null or
 * undefined is not limited.
 *
 * @param {{ take(key: Key, cost?: number): Promise<Decision> }} limit a limit of a rate, a wallet or a cached limit
 * @param {{ key: (request: any) => MaybeKey | Promise<MaybeKey>, cost?: (request: any) => number | Promise<number> }} options
 */
export function rateLimit(limit: {
    take(key: Key, cost?: number): Promise<Decision>;
}, { key, cost }: {
    key: (request: any) => MaybeKey | Promise<MaybeKey>;
    cost?: (request: any) => number | Promise<number>;
}): (request: any, reply: any) => Promise<any>;
export type Key = import("./limits.js").Key;
/**
 * null or undefined: the request is not limited
 */
export type MaybeKey = Key | null | undefined;
export type Decision = import("./decision.js").Decision;
