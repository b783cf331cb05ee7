// A process of the load test, in Node.js: load.py describes what it does. Its "threads" are calls that run at the same time.
import { createInterface } from 'node:readline';
import { Redis } from '../node/node_modules/ioredis/built/index.js';
import { Gcra, Limits, Slide } from '../node/dist/index.js';

const ask = JSON.parse(process.argv[2]);
const redis = new Redis({ path: ask.socket });
const limits = new Limits(redis, { timeout: 60, connectTimeout: 60, repeatDenials: ask.repeat ?? 0 });
const policy = ask.burst ? new Gcra(ask.rate, { burst: ask.burst }) : new Slide(ask.rate, { segments: 24 });
const limit = limits.limit('load', policy);
const spender = ask.batch ? limits.wallet(limit, { batch: ask.batch }) : limit;
let [calls, spent, stopped] = [0, 0, false];
const failures = [];

async function spend() {
  try {
    while (!stopped) {
      for (let n = 0; n < 100; n++) {
        const cost = 1 + Math.floor(Math.random() * ask.cost);
        const { allowed, granted, source } = await spender.take('key', cost);
        calls += 1;
        if (!allowed) continue;
        if (granted !== cost || source === 'down') throw new Error(`granted ${granted} of ${cost} by ${source}`);
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
await limits.close();
say({ closed: true });
process.exit();
