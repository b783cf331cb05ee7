import { gate, PROBLEM } from './web.js';

/** @import { Decision } from './decision.js' */

/**
 * What Express and connect have in common.
 * @typedef {import('node:http').IncomingMessage & { ip?: string }} Request
 * @typedef {import('node:http').ServerResponse} Response
 */

/**
 * Middleware for Express: takes units for each request, sets the header fields of the decision, and answers 429 if it is denied.
 * Errors are passed to `next`; an `Unavailable` has the status 503. If several limits decide about a request, `RateLimit-Policy` and
 * `RateLimit` list all of them, and the other fields are those of the one with the least remaining.
 * @template {Request} R @template {Response} W
 * @param {import('./web.js').LimitOf<R>} limit a limit of a rate, a wallet, or a function of the request that returns one
 * @param {import('./web.js').WebOptions<R, (request: R, response: W, decision: Decision) => unknown>} [options]
 */
export function rateLimit(limit, options = {}) {
  const { denied } = options;
  if (denied !== undefined && typeof denied !== 'function') throw new TypeError('denied is a function');
  const decide = gate(limit, options, (request) => request.ip ?? request.socket.remoteAddress);
  /** @param {R} request @param {W} response @param {(error?: unknown) => void} next @returns {Promise<void>} */
  return async function limited(request, response, next) {
    try {
      const decided = await decide(request);
      for (const [name, value] of decided?.fields ?? []) response.setHeader(name, value);
      if (!decided || decided.decision.allowed) return next();
      if (denied) return void (await denied(request, response, decided.decision));
      response.statusCode = 429;
      response.setHeader('Content-Type', PROBLEM);
      response.end(JSON.stringify(decided.decision.problem()));
    } catch (error) {
      next(error);
    }
  };
}
