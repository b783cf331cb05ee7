import { Command } from 'ioredis';

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/**
 * Express middleware for any of the algorithms: one call to Redis per request, and headers that say exactly when to retry.
 *
 *     import { ipKeyGenerator } from 'express-rate-limit';
 *     const redis = new Redis({ commandTimeout: 200, autoResendUnfulfilledCommands: false });
 *     const key = (request) => request.user?.id ?? ipKeyGenerator(request.ip);
 *     app.use(rateLimit(redis, { algorithm: 'GCRA', limit: 10, period: 60, key }));
 *     app.use('/login', rateLimit(redis, { algorithm: 'FIXED', limit: 5, period: 900, key, name: 'login' }));
 *
 * `redis` is a Redis or a Cluster of ioredis. `period` is a number of seconds. `options` are the options of the algorithm, as
 * in ['BURST', 5]. `key` and `cost` are functions of the request, which may be async; `cost` returns a whole number, at least 1.
 * To limit by address, use `ipKeyGenerator(request.ip)`, because one IPv6 client has many addresses.
 *
 * The key in Redis is `prefix`, `name`, a colon and the request's key. Limits with different names count separately, and limits
 * with the same name count together. A `keyPrefix` of ioredis is not added to this key.
 *
 * When Redis gives no decision (it is down, slow, loading or full), `onDown: 'closed'`, the default, passes the error to `next`
 * with status 503; 'open' logs the error and lets the request through, uncounted and without headers. `commandTimeout` limits
 * how long a request waits for Redis. With `autoResendUnfulfilledCommands: false` no command is charged twice. An error that
 * `key` or `cost` throws is passed to `next` unchanged, in both modes.
 */
export function rateLimit(
  redis,
  { algorithm, limit, period, options = [], key, cost = () => 1, name = 'default', prefix = 'limit:', onDown = 'closed' },
) {
  if (!['open', 'closed'].includes(onDown)) throw new TypeError("onDown is 'open' or 'closed'");
  if (!Number.isFinite(period) || period <= 0) throw new TypeError('period is a number of seconds, above 0');
  // The server accepts whole microseconds; a number may have more decimals.
  const exact = `${Math.round(period * 1e6)}us`;
  const policy = `"${name}";q=${limit};w=${Math.ceil(period)}`;

  return async function limited(request, response, next) {
    let redisKey, units;
    // Outside the `try` around Redis: otherwise a request could make these fail, and pass when onDown is 'open'.
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
    // waitMs is -1 if the call is never granted: then there is no time to report.
    const t = granted ? `;t=${reset}` : waitMs < 0 ? '' : `;t=${wait}`;
    // `append`, because each limit of a route adds its own item.
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
