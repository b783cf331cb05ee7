import type { Decision } from './decision.js';
import { gate, type LimitOf, PROBLEM, type WebOptions } from './web.js';

/**
 * A hook for Fastify (`onRequest` or `preHandler`): takes units for each request, sets the header fields of the decision, and
 * answers 429 if it is denied. Errors are thrown; an `Unavailable` is answered with 503. If several limits decide about a request,
 * `RateLimit-Policy` and `RateLimit` list all of them, and the other fields are those of the one with the least remaining.
 * What `denied` returns is sent.
 */
export function rateLimit(
  limit: LimitOf<any>,
  options: WebOptions<any, (request: any, reply: any, decision: Decision) => unknown> = {},
) {
  const { denied = (_, __, decision) => JSON.stringify(decision.problem()) } = options;
  const decide = gate(limit, options, (request) => request.ip);
  return async function limited(request: any, reply: any) {
    let decided;
    try {
      decided = await decide(request);
    } catch (error) {
      const { status } = error as { status?: number };
      throw status === undefined ? error : Object.assign(error as object, { statusCode: status });
    }
    for (const [name, value] of decided?.fields ?? []) reply.header(name, value);
    if (!decided || decided.decision.allowed) return undefined;
    reply.code(429).type(PROBLEM);
    const body = await denied(request, reply, decided.decision);
    return reply.sent ? reply : reply.send(body);
  };
}
