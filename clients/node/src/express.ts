import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Decision } from './decision.js';
import { gate, type LimitOf, PROBLEM, type WebOptions } from './web.js';

/** What Express and connect have in common. */
type Request = IncomingMessage & { ip?: string };

/**
 * Middleware for Express: takes units for each request, sets the header fields of the decision, and answers 429 if it is denied.
 * Errors are passed to `next`; an `Unavailable` has the status 503. If several limits decide about a request, `RateLimit-Policy`
 * and `RateLimit` list all of them, and the other fields are those of the one with the least remaining.
 */
export function rateLimit<R extends Request, W extends ServerResponse>(
  limit: LimitOf<R>,
  options: WebOptions<R, (request: R, response: W, decision: Decision) => unknown> = {},
) {
  const { denied } = options;
  const decide = gate(limit, options, (request) => request.ip ?? request.socket.remoteAddress);
  return async function limited(request: R, response: W, next: (error?: unknown) => void): Promise<void> {
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
