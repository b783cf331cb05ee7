// Many events, few calls: a wallet decides in the process from units that it has fetched, and a cache remembers denials until the
// server says that they are over.
import { Redis } from 'ioredis';
import { Fixed, Limits, Slide } from 'redis-rl';

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
const limits = new Limits(redis);

/** How many of these calls are allowed, one after the other. */
async function allowed(calls, take) {
  let count = 0;
  for (let n = 0; n < calls; n++) if ((await take()).allowed) count++;
  return count;
}

// At most 100 000 events of a site in any hour. A process fetches 100 of them at once, and gives back what it does not use.
const events = limits.wallet(limits.limit('events', new Slide('100000/h')), { batch: 100 });
console.log(await allowed(250, () => events.take('site-1')), 'events recorded');

// A client that goes on calling although it is denied costs no calls of the server.
const logins = limits.cached(limits.limit('login', new Fixed('5/h')));
console.log(await allowed(1000, () => logins.take('10.0.0.1')), 'attempts let through');

await limits.close();
redis.disconnect();
