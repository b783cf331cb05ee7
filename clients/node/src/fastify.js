/** @typedef {import('./limits.js').Key} Key */
/** @typedef {import('./decision.js').Decision} Decision */

/**
 * A hook for Fastify (`onRequest` or `preHandler`): takes units for each request, sets the header fields of the decision, and
 * answers 429 if it is denied. An error, such as `Down`, is thrown; it has a `statusCode`.
 *
 * @param {{ take(key: Key, cost?: number): Promise<Decision> }} limit a limit of a rate, a wallet or a cached limit
 * @param {{ key: (request: any) => Key | Promise<Key>, cost?: (request: any) => number | Promise<number> }} options
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
      decision = await limit.take(await key(request), await cost(request));
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
