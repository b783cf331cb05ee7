// A Fastify app: each client gets 5 pages at once, then one every 6 seconds, and 5 logins in each window of
// 15 minutes. When Redis is down, it answers 503.
import { ipKeyGenerator } from 'express-rate-limit';
import Fastify from 'fastify';
import { createClient } from 'redis';
import { Fixed, Gcra, Limits } from 'redis-rl';
import { rateLimit } from 'redis-rl/fastify';

const redis = createClient({ url: process.env.REDIS_URL ?? 'redis://localhost' });
redis.on('error', () => {}); // The limits say when they get no answer.
await redis.connect();
const limits = new Limits(redis, { prefix: 'web:' });
const pages = limits.limit('pages', new Gcra('10/m', { burst: 5 }));
const login = limits.limit('login', new Fixed('5/15m'));
const key = (request) => ipKeyGenerator(request.ip);

const app = Fastify();
app.get('/', { onRequest: rateLimit(pages, { key }) }, async () => 'hello\n');
app.get('/report', { onRequest: rateLimit(pages, { key, cost: () => 3 }) }, async () => 'a report\n');
app.post('/login', { onRequest: rateLimit(login, { key }) }, async () => 'welcome\n');

await app.listen({ port: Number(process.env.PORT ?? 3000), host: 'localhost' });
console.log(`http://localhost:${app.server.address().port}`);
