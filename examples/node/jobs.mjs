// At most 2 jobs of a kind at a time, on all machines together. A job that runs longer than 30 seconds keeps its place, because it is
// renewed; the place of a process that dies is free again after 30 seconds.
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Lease, Limits } from 'redis-rl';

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
const jobs = new Limits(redis).limit('jobs', new Lease(2, '30s'));

async function report(customer, signal) {
  // The signal is aborted if the place is lost: another job may have it now. Then this one must stop.
  await sleep(50, undefined, { signal });
  return `a report for ${customer}`;
}

async function run(customer) {
  return jobs.withLease('reports', { wait: 600 }, (lease) => report(customer, lease.signal));
}

for (const line of await Promise.all(['ada', 'bob', 'eve', 'kim', 'max'].map(run))) console.log(line);
console.log((await jobs.peek('reports')).remaining, 'places are free');
redis.disconnect();
