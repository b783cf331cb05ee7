// Quotas per day, week or month of a time zone's calendar: full again at midnight in Berlin, on Monday morning, or on the first of the
// month, also when the clocks change. A call is charged to all three, or to none.
import { Redis } from 'ioredis';
import { Fixed, Limits } from 'redis-rl';

const zone = 'Europe/Berlin';
const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
const limits = new Limits(redis, { prefix: '{quota}:' });
const quotas = [
  limits.limit('day', new Fixed('1000/d', { zone })),
  limits.limit('week', new Fixed('5000/week', { zone })),
  limits.limit('month', new Fixed('10000/month', { zone })),
];

const { allowed, decisions, wait } = await limits.all(quotas.map((quota) => [quota, 'customer:42']));
if (allowed) console.log(decisions.map(({ remaining }) => remaining).join(', '), 'are left');
else console.log(`The quota is used up. It is full again in ${wait} seconds.`);
await limits.close();
redis.disconnect();
