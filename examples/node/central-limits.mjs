import { Command } from 'ioredis';

const ALGORITHMS = ['FIXED', 'SLIDE', 'GCRA', 'BUCKET'];

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[this.name.toUpperCase() === 'RL.PEEK' ? 1 : 0]];
  }
}

/**
 * Limits that an operator changes for all processes at once. No process restarts. The policies are the fields of a hash on the
 * server:
 *
 *     HSET limits api "GCRA 10 1m BURST 20"
 *
 *     const limits = new CentralLimits(redis, { api: 'GCRA 10 1m BURST 20' });
 *     const { granted, waitMs } = await limits.take('api', 'user:42');
 *
 * Each process keeps a copy of the policies. A call that finds the copy older than `everyMs` first reads the hash again, with
 * one HGETALL for all calls that begin meanwhile. So there is no timer and no subscription: no change is missed while a
 * connection is down, and an idle process reads nothing.
 *
 * The server itself checks a new policy, by RL.PEEK, before it is used. If a policy is missing or malformed, or the hash can't
 * be read, the last good policy stays in force, and the reason is logged once. Before the first good one, the default that the
 * program names is in force.
 *
 * The key is `limit:NAME:ALGORITHM:KEY`. It contains the algorithm, because a key can't change its algorithm.
 *
 * `redis` is a Redis or a Cluster of ioredis.
 */
export class CentralLimits {
  #redis;
  #source;
  #everyMs;
  #log;
  #policies;
  #stored = new Set(); // The names that the hash has had.
  #logged = new Map(); // What was logged last, by name.
  #due = 0;
  #reading;

  constructor(redis, defaults, { source = 'limits', everyMs = 1000, log = console.error } = {}) {
    this.#redis = redis;
    this.#source = source;
    this.#everyMs = everyMs;
    this.#log = log;
    this.#policies = new Map(Object.entries(defaults).map(([name, policy]) => [name, words(policy)]));
  }

  /** Takes one unit, or what `options` say, such as 'COST', 5. Returns the five integers of the reply, by name. */
  async take(name, key, ...options) {
    if (performance.now() >= this.#due) this.#reading ??= this.#refresh().finally(() => (this.#reading = undefined));
    await this.#reading;
    const policy = this.#policies.get(name);
    if (!policy) throw new RangeError(`there is no policy of ${name}`);
    const [algorithm, ...rest] = policy;
    const command = new Limiter(`RL.${algorithm}`, [keyOf(name, algorithm, key), ...rest, ...options]);
    const [granted, limit, remaining, waitMs, resetMs] = await this.#redis.sendCommand(command);
    return { granted, limit, remaining, waitMs, resetMs };
  }

  /** Reads the hash, and takes over the policies that have changed. */
  async #refresh() {
    const due = performance.now() + this.#everyMs;
    let fields;
    try {
      fields = new Map(Object.entries(await this.#redis.hgetall(this.#source)));
      this.#note(undefined);
    } catch (error) {
      this.#note(undefined, `the policies in ${this.#source} can't be read, and stay as they are: ${error.message}`);
      return;
    } finally {
      this.#due = due;
    }
    for (const [name, policy] of fields) {
      const changed = words(policy);
      if (changed.join(' ') !== this.#policies.get(name)?.join(' ')) {
        const reason = await this.#errorIn(name, changed);
        if (reason) {
          this.#note(name, `the policy '${policy}' of ${name} is not used: ${reason}`);
          continue;
        }
        this.#policies.set(name, changed);
      }
      this.#stored.add(name);
      this.#note(name);
    }
    for (const name of this.#stored) {
      if (fields.has(name)) continue;
      const last = this.#policies.get(name).join(' ');
      this.#note(name, `${this.#source} has no policy of ${name} any more; the last one stays: ${last}`);
    }
  }

  /** Why this policy can't be used; undefined if it can. */
  async #errorIn(name, [algorithm = '', ...rest]) {
    if (!ALGORITHMS.includes(algorithm.toUpperCase())) return `it must begin with ${ALGORITHMS.join(', ')}`;
    // With COST, because a policy names no amount. The call reads, and writes nothing.
    const check = new Limiter('RL.PEEK', [algorithm, keyOf(name, algorithm, ''), ...rest, 'COST', 1]);
    return this.#redis.sendCommand(check).then(
      () => undefined,
      (error) => error.message,
    );
  }

  /** Logs a message about a name, unless it was the last one about it. */
  #note(name, message) {
    if (message && this.#logged.get(name) !== message) this.#log(message);
    this.#logged.set(name, message);
  }
}

function words(policy) {
  return policy.split(/\s+/).filter(Boolean);
}

function keyOf(name, algorithm, key) {
  return `limit:${name}:${algorithm.toLowerCase()}:${key}`;
}
