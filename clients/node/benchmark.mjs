// How many decisions a second the package makes: by a call to the server, by a denial that it repeats, and from a wallet.
//
// `node benchmark.mjs URL SECONDS` prints one round as JSON. `make bench PART=clients` runs it.

import { performance } from 'node:perf_hooks';
import { Redis } from 'ioredis';
import { Fixed, Limits } from './dist/index.js';

const [url, seconds] = [process.argv[2], Number(process.argv[3])];
const redis = new Redis(url);
const [limits, repeating] = [0, 1].map((repeatDenials) => new Limits(redis, { repeatDenials, timeout: 60, connectTimeout: 60 }));
const many = limits.limit('bench', new Fixed('1000000000000/d'));
const wallet = limits.wallet(many, { batch: 1_000_000_000 });
const few = repeating.limit('few', new Fixed('1/d'));

/** Decisions a second, one after the other; the clock is read after each `atOnce` of them. */
async function rate(decide, atOnce) {
  const begin = performance.now();
  for (let count = 0; ; count += atOnce) {
    const passed = (performance.now() - begin) / 1000;
    if (passed >= seconds) return count / passed;
    for (let n = 0; n < atOnce; n++) await decide();
  }
}

async function granted() {
  if (!(await wallet.take('user:1')).allowed) throw new Error('the wallet has no units');
}

async function denied() {
  if ((await few.take('user:1')).allowed) throw new Error('a denial was granted');
}

// The first calls connect, fetch the batch, are denied, and are compiled.
await few.take('user:1');
for (let n = 0; n < 1000; n++) {
  await many.take('user:2');
  await granted();
  await denied();
}
const rates = {
  round_trip: await rate(() => many.take('user:2'), 20),
  denied: await rate(denied, 500),
  wallet: await rate(granted, 500),
};
console.log(JSON.stringify(rates));
await limits.close();
await repeating.close();
redis.disconnect();
