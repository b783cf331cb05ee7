// A process of the load test, in Node.js: load.py describes what it does. Its "threads" are calls that run at the same time.
import { createInterface } from 'node:readline';
import { Redis } from '../node/node_modules/ioredis/built/index.js';
import { Gcra, Limits, Slide } from '../node/src/index.js';

const ask = JSON.parse(process.argv[2]);
const redis = new Redis({ path: ask.socket });
const limits = new Limits(redis, { patience: 60 });
const policy = ask.burst ? new Gcra(ask.rate, { burst: ask.burst }) : new Slide(ask.rate, { segments: 24 });
const limit = limits.limit('load', policy);
const spender = ask.batch ? limits.wallet(limit, { batch: ask.batch }) : limits.cached(limit);
let [calls, spent, stopped] = [0, 0, false];
const failures = [];

async function spend() {
  try {
    while (!stopped) {
      for (let n = 0; n < 100; n++) {
        const cost = 1 + Math.floor(Math.random() * ask.cost);
        const { allowed, granted, counted } = await spender.take('key', cost);
        calls += 1;
        if (!allowed) continue;
        if (granted !== cost || !counted) throw new Error(`granted ${granted} of ${cost}`);
        spent += cost;
      }
      // Calls that are decided in the process do not let timers and sockets have their turn.
      await new Promise(setImmediate);
    }
  } catch (error) {
    failures.push(String(error.stack));
  }
}

const say = (more) => console.log(JSON.stringify({ calls, spent, failures, ...more }));
say({ ready: true });
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
await lines.next();
const threads = Array.from({ length: ask.threads }, spend);
const reports = setInterval(say, 100);
await lines.next();
stopped = true;
await Promise.all(threads);
clearInterval(reports);
await spender.close?.();
await limits.close();
say({ closed: true });
process.exit();
