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
export function rateLimit(limit, { key, cost = () => 1 }) {
  if (typeof key !== 'function' || typeof cost !== 'function') throw new TypeError('key and cost are functions of the request');
  /**
   * @param {any} request
   * @param {any} reply
   */
  return async function limited(request, reply) {
    let decision;
    try {
      const name = await key(request);
      if (name === undefined || name === null) return undefined;
      decision = await limit.take(name, await cost(request));
    } catch (error) {
      const { status } = /** @type {{ status?: number }} */ (error);
      throw status === undefined ? error : Object.assign(/** @type {object} */ (error), { statusCode: status });
    }
    for (const [name, value] of Object.entries(decision.headers())) {
      const before = name.startsWith('RateLimit') ? reply.getHeader(name) : undefined;
      reply.header(name, before === undefined ? value : `${before}, ${value}`);
    }
    if (!decision.allowed) {
      const message = 'Too many requests, please try again later.';
      return reply.code(429).send({ statusCode: 429, error: 'Too Many Requests', message });
    }
    return undefined;
  };
}
