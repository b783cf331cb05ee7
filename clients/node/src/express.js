import { InvalidArgument } from './errors.js';

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
export function rateLimit(limit, { key, cost = () => 1 }) {
  if (typeof key !== 'function' || typeof cost !== 'function') throw new TypeError('key and cost are functions of the request');
  /**
   * @param {R} request
   * @param {Response} response
   * @param {(error?: unknown) => void} next
   */
  return async function limited(request, response, next) {
    /** @type {Decision} */
    let decision;
    try {
      const name = await key(request);
      if (name === undefined || name === null) return next();
      decision = await limit.take(name, await cost(request));
    } catch (error) {
      // A wrong key or cost is a mistake of the program, and not of the client: it has no status.
      return next(error instanceof InvalidArgument ? Object.assign(error, { status: 500 }) : error);
    }
    for (const [name, value] of Object.entries(decision.headers())) {
      const before = name.startsWith('RateLimit') ? response.getHeader(name) : undefined;
      response.setHeader(name, before === undefined ? value : `${before}, ${value}`);
    }
    if (decision.allowed) return next();
    response.statusCode = 429;
    response.setHeader('Content-Type', 'text/plain; charset=utf-8');
    return response.end('Too many requests, please try again later.');
  };
}
