// `express-rate-limit` compares the count with the limit itself: here the server only counts. The highest limit there is.
const UNLIMITED = 1e12;

/**
 * A store for express-rate-limit: its fixed window, `RL.FIXED`, one command a request.
 *
 *     app.use(rateLimit({ windowMs: 60_000, limit: 100, standardHeaders: 'draft-8', store: new RedisRlStore(redis) }));
 *
 * When Redis is down: express-rate-limit passes the error on (closed), or with `passOnStoreError: true` lets through (open).
 */
export class RedisRlStore {
  constructor(redis, { prefix = 'limit:' } = {}) {
    this.redis = redis;
    this.prefix = prefix;
  }

  init({ windowMs }) {
    this.period = `${windowMs}ms`;
  }

  async #fixed(command, key, ...amount) {
    const reply = await this.redis.call(...command, this.prefix + key, UNLIMITED, this.period, ...amount);
    const [, limit, remaining, , resetMs] = reply;
    return { totalHits: limit - remaining, resetTime: new Date(Date.now() + resetMs) };
  }

  increment(key) {
    return this.#fixed(['RL.FIXED'], key, 'COST', 1);
  }

  async decrement(key) {
    await this.#fixed(['RL.FIXED'], key, 'REFUND', 1);
  }

  get(key) {
    return this.#fixed(['RL.PEEK', 'FIXED'], key);
  }

  async resetKey(key) {
    await this.redis.del(this.prefix + key);
  }
}
