/**
 * Express middleware for any of the algorithms: one call a request, and headers that tell exactly when to come back.
 *
 *     const redis = new Redis({ commandTimeout: 200, autoResendUnfulfilledCommands: false });
 *     app.use(rateLimit(redis, { algorithm: 'GCRA', limit: 10, period: 60, key: (request) => request.user.id }));
 *
 * `period` is in seconds; `options` are the algorithm's, as in ['BURST', 5]; `cost` may depend on the request. Who limits by
 * address takes `ipKeyGenerator(request.ip)` of express-rate-limit, as a client of IPv6 has many.
 *
 * When Redis gives no decision (it is down, slow, loading, full): `onDown: 'closed'`, the default, passes the error on with
 * status 503; 'open' logs it and lets the request through, uncounted and without headers. `commandTimeout` says how long that
 * takes, and a command that is not resent is not charged twice.
 */
export function rateLimit(
  redis,
  { algorithm, limit, period, options = [], key, cost = () => 1, name = 'default', prefix = 'limit:', onDown = 'closed' },
) {
  if (!['open', 'closed'].includes(onDown)) throw new TypeError("onDown is 'open' or 'closed'");
  const policy = `"${name}";q=${limit};w=${Math.ceil(period)}`;

  return async function limited(request, response, next) {
    let reply;
    try {
      const rest = [limit, period, ...options, 'COST', cost(request)];
      reply = await redis.call(`RL.${algorithm}`, prefix + key(request), ...rest);
    } catch (error) {
      if (onDown === 'closed') return next(Object.assign(error, { status: 503 }));
      console.warn(`${request.path} goes on uncounted: ${error.message}`);
      return next();
    }
    const [granted, capacity, remaining, waitMs, resetMs] = reply;
    const wait = Math.ceil(waitMs / 1000);
    const reset = Math.ceil(resetMs / 1000);
    // More than the capacity is never granted: no time to tell.
    const t = granted ? `;t=${reset}` : waitMs < 0 ? '' : `;t=${wait}`;
    // One item for each limit of a route.
    response.append('RateLimit-Policy', policy);
    response.append('RateLimit', `"${name}";r=${remaining}${t}`);
    response.set({
      'X-RateLimit-Limit': String(capacity),
      'X-RateLimit-Remaining': String(remaining),
      'X-RateLimit-Reset': String(Math.ceil((Date.now() + resetMs) / 1000)),
    });
    if (granted) return next();
    if (waitMs >= 0) response.set('Retry-After', String(wait));
    response.status(429).send('Too many requests, please try again later.');
  };
}
