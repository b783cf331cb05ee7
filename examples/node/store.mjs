import { Command } from 'ioredis';

/** A command of the module. ioredis knows no key in it by itself, and a Cluster would send it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[this.name === 'RL.PEEK' ? 1 : 0]];
  }
}

// `express-rate-limit` compares the count with the limit itself: here the server only counts. The highest limit there is.
const UNLIMITED = 1e12;

/**
 * A store for express-rate-limit: its fixed window, `RL.FIXED`, one command a request.
 *
 *     app.use(rateLimit({ windowMs: 60_000, limit: 100, standardHeaders: 'draft-8', store: new RedisRlStore(redis) }));
 *
 * `redis` is a Redis or a Cluster of ioredis.
 *
 * The key in Redis is `prefix` and the request's key. `prefix` is by default `store:` and the window, as in `store:60000:`, so
 * that limits of different windows are counted apart; two limits of one window need a prefix each. A `keyPrefix` of ioredis
 * does not reach this key.
 *
 * When Redis is down: express-rate-limit passes the error on (closed), or with `passOnStoreError: true` lets through (open).
 */
export class RedisRlStore {
  constructor(redis, { prefix } = {}) {
    this.redis = redis;
    this.prefix = prefix;
  }

  init({ windowMs }) {
    this.period = `${windowMs}ms`;
    // Public: express-rate-limit tells by it what is counted twice.
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
