// express-rate-limit, with counts that all processes share: 10 requests of each client, in windows of a minute. When Redis is down,
// requests go on.
import express from 'express';
import { rateLimit } from 'express-rate-limit';
import { Redis } from 'ioredis';
import { Limits } from 'redis-rl';
import { RedisRlStore } from 'redis-rl/express-rate-limit';

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
redis.on('error', () => {});
const store = new RedisRlStore(new Limits(redis, { prefix: 'web:' }));

const app = express();
app.use(rateLimit({ windowMs: 60_000, limit: 10, standardHeaders: 'draft-8', passOnStoreError: true, store }));
app.get('/', (request, response) => response.send('hello\n'));

const server = app.listen(process.env.PORT ?? 3000, 'localhost', () => console.log(`http://localhost:${server.address().port}`));
