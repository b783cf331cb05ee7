// Limits that an operator changes for all processes at once, without a restart. The policies are the fields of a hash on the server:
//
//     HSET limits api "GCRA 10 1m BURST 20"
//
// Each process keeps a copy. A call that finds it older than `everyMs` first reads the hash again, with one HGETALL for all calls that
// begin meanwhile. So no change is missed while a connection is down, and an idle process reads nothing. The server itself checks a
// new policy, by RL.PEEK, before it is used. If a policy is missing or malformed, or the hash can't be read, the last good policy stays
// in force (at first, the default), and the reason is logged once.
//
// The key is `limit:NAME.ALGORITHM:KEY`. It contains the algorithm, because a key can't change its algorithm.
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { Bucket, Fixed, Gcra, Limits, Slide } from 'redis-rl';

const POLICIES = { FIXED: Fixed, SLIDE: Slide, GCRA: Gcra, BUCKET: Bucket };
const OPTIONS = { FIXED: ['ALIGN'], SLIDE: ['SEGMENTS'], GCRA: ['BURST'], BUCKET: ['CAPACITY', 'STEP'] };

/** The policy that a text such as "GCRA 10 1m BURST 20" means. A duration without a unit is in seconds. */
function policyOf(text) {
  const [algorithm = '', limit, period, ...words] = text.toUpperCase().split(/\s+/).filter(Boolean);
  const Policy = POLICIES[algorithm];
  if (!Policy) throw new RangeError(`it must begin with ${Object.keys(POLICIES).join(', ')}`);
  const options = {};
  while (words.length) {
    const name = words.shift();
    if (!OPTIONS[algorithm].includes(name)) throw new RangeError(`${algorithm} has no option ${name}`);
    if (name === 'STEP') options.step = true;
    else options[name.toLowerCase()] = name === 'ALIGN' ? duration(words.shift()) : Number(words.shift());
  }
  return new Policy(`${limit}/${duration(period)}`, options);
}

const duration = (text = '') => (/\d$/.test(text) ? `${text}s` : text).toLowerCase();

export class CentralLimits {
  #redis;
  #limits;
  #source;
  #everyMs;
  #log;
  #policies; // The text and the limit of each name.
  #stored = new Set(); // The names that the hash has had.
  #logged = new Map(); // What was logged last, by name.
  #due = 0;
  #reading;

  constructor(redis, defaults, { source = 'limits', everyMs = 1000, log = console.error, ...options } = {}) {
    this.#redis = redis;
    this.#limits = new Limits(redis, { prefix: 'limit:', ...options });
    this.#source = source;
    this.#everyMs = everyMs;
    this.#log = log;
    this.#policies = new Map(Object.entries(defaults).map(([name, text]) => [name, this.#parsed(name, text)]));
  }

  /** The limit of this name, as it is in force now. */
  async get(name) {
    if (performance.now() >= this.#due) this.#reading ??= this.#refresh().finally(() => (this.#reading = undefined));
    await this.#reading;
    const policy = this.#policies.get(name);
    if (!policy) throw new RangeError(`there is no policy of ${name}`);
    return policy.limit;
  }

  #parsed(name, text) {
    const policy = policyOf(text);
    return { text, limit: this.#limits.limit(`${name}.${policy.algorithm.toLowerCase()}`, policy) };
  }

  /** Reads the hash, and takes over the policies that have changed. */
  async #refresh() {
    const due = performance.now() + this.#everyMs;
    let fields;
    try {
      fields = new Map(Object.entries(await this.#redis.hgetall(this.#source)));
      this.#note(undefined);
    } catch (error) {
      return this.#note(undefined, `the policies in ${this.#source} can't be read, and stay as they are: ${error.message}`);
    } finally {
      this.#due = due;
    }
    for (const [name, text] of fields) {
      if (text !== this.#policies.get(name)?.text) {
        try {
          const changed = this.#parsed(name, text);
          await changed.limit.peek('check');
          this.#policies.set(name, changed);
        } catch (error) {
          this.#note(name, `the policy '${text}' of ${name} is not used: ${error.message}`);
          continue;
        }
      }
      this.#stored.add(name);
      this.#note(name);
    }
    for (const name of this.#stored) {
      if (fields.has(name)) continue;
      this.#note(name, `${this.#source} has no policy of ${name} any more; the last one stays: ${this.#policies.get(name).text}`);
    }
  }

  /** Logs a message about a name, unless it was the last one about it. */
  #note(name, message) {
    if (message && this.#logged.get(name) !== message) this.#log(message);
    this.#logged.set(name, message);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
  const limits = new CentralLimits(redis, { api: 'GCRA 10 1m BURST 20' }); // Until the hash `limits` names another policy of `api`.
  const decision = await (await limits.get('api')).take('user:42');
  if (decision.allowed) console.log(decision.remaining, 'are left');
  else if (decision.wait === null) console.log('All calls are refused now.'); // The limit is 0.
  else console.log(`Try again in ${decision.wait} seconds.`);
  redis.disconnect();
}
