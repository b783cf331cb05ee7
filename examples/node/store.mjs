import { Command } from 'ioredis';

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[this.name === 'RL.PEEK' ? 1 : 0]];
  }
}

// The server only counts, because express-rate-limit compares the count with the limit itself. This is the highest limit.
const UNLIMITED = 1e12;

/**
 * A store for express-rate-limit: a fixed window by `RL.FIXED`, one command per request.
 *
 *     app.use(rateLimit({ windowMs: 60_000, limit: 100, standardHeaders: 'draft-8', store: new RedisRlStore(redis) }));
 *
 * `redis` is a Redis or a Cluster of ioredis.
 *
 * The key in Redis is `prefix` and the request's key. The default `prefix` is `store:` and the window, as in `store:60000:`, so
 * limits with different windows count separately. Two limits with the same window need different prefixes. A `keyPrefix` of
 * ioredis is not added to this key.
 *
 * When Redis is down, express-rate-limit passes the error to `next` (closed), or with `passOnStoreError: true` lets the request
 * through (open).
 */
export class RedisRlStore {
  constructor(redis, { prefix } = {}) {
    this.redis = redis;
    this.prefix = prefix;
  }

  init({ windowMs }) {
    this.period = `${windowMs}ms`;
    // Public, because express-rate-limit reads it to detect requests that are counted twice.
    this.prefix ??= `store:${windowMs}:`;
  }

  async #fixed([name, ...algorithm], key, ...amount) {
    const args = [...algorithm, this.prefix + key, UNLIMITED, this.period, ...amount];
    const reply = await this.redis.sendCommand(new Limiter(name, args));
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
