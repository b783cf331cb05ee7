import { Command } from 'ioredis';

/** A command of the module. ioredis knows no key in it by itself, and a Cluster would send it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/**
 * Express middleware for any of the algorithms: one call a request, and headers that tell exactly when to come back.
 *
 *     import { ipKeyGenerator } from 'express-rate-limit';
 *     const redis = new Redis({ commandTimeout: 200, autoResendUnfulfilledCommands: false });
 *     const key = (request) => request.user?.id ?? ipKeyGenerator(request.ip);
 *     app.use(rateLimit(redis, { algorithm: 'GCRA', limit: 10, period: 60, key }));
 *     app.use('/login', rateLimit(redis, { algorithm: 'FIXED', limit: 5, period: 900, key, name: 'login' }));
 *
 * `redis` is a Redis or a Cluster of ioredis. `period` is a number of seconds; `options` are the algorithm's, as in
 * ['BURST', 5]; `key` and `cost`, a whole number from 1 on, may depend on the request, and may be async. Who limits by address
 * takes `ipKeyGenerator(request.ip)`, as a client of IPv6 has many.
 *
 * The key in Redis is `prefix`, `name`, a colon and the request's key: limits of different names are counted apart, those of
 * the same name together. A `keyPrefix` of ioredis does not reach it.
 *
 * When Redis gives no decision (it is down, slow, loading, full): `onDown: 'closed'`, the default, passes the error on with
 * status 503; 'open' logs it and lets the request through, uncounted and without headers. `commandTimeout` says how long that
 * takes, and a command that is not resent is not charged twice. What `key` or `cost` throws is passed on as it is, in both.
 */
export function rateLimit(
  redis,
  { algorithm, limit, period, options = [], key, cost = () => 1, name = 'default', prefix = 'limit:', onDown = 'closed' },
) {
  if (!['open', 'closed'].includes(onDown)) throw new TypeError("onDown is 'open' or 'closed'");
  if (!Number.isFinite(period) || period <= 0) throw new TypeError('period is a number of seconds, above 0');
  // A number may have more decimals than the microseconds that the server takes.
  const exact = `${Math.round(period * 1e6)}us`;
  const policy = `"${name}";q=${limit};w=${Math.ceil(period)}`;

  return async function limited(request, response, next) {
    let redisKey, units;
    // Apart from Redis: a request that makes these fail would be let through when onDown is 'open'.
    try {
      redisKey = `${prefix}${name}:${await key(request)}`;
      units = await cost(request);
      if (!Number.isInteger(units) || units < 1 || units > 1e12) throw new RangeError('cost is a whole number, 1 to 1e12');
    } catch (error) {
      return next(error);
    }
    let reply;
    try {
      reply = await redis.sendCommand(new Limiter(`RL.${algorithm}`, [redisKey, limit, exact, ...options, 'COST', units]));
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
