// An Express app: each client gets 5 pages at once, then one every 6 seconds, and 5 logins in each window of
// 15 minutes. When Redis is down, pages are served uncounted, but nobody can try passwords.
import express from 'express';
import { ipKeyGenerator } from 'express-rate-limit';
import { Redis } from 'ioredis';
import { Fixed, Gcra, Limits } from 'redis-rl';
import { rateLimit } from 'redis-rl/express';

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
redis.on('error', () => {}); // The limits say when they get no answer.
const pages = new Limits(redis, { prefix: 'web:', onDown: 'open' }).limit('pages', new Gcra('10/m', { burst: 5 }));
const login = new Limits(redis, { prefix: 'web:', onDown: 'closed' }).limit('login', new Fixed('5/15m'));
// One IPv6 client has many addresses. Behind a proxy, set Express's `trust proxy`.
const key = (request) => ipKeyGenerator(request.ip);

const app = express();
app.get('/', rateLimit(pages, { key }), (request, response) => response.send('hello\n'));
app.get('/report', rateLimit(pages, { key, cost: () => 3 }), (request, response) => response.send('a report\n'));
app.post('/login', rateLimit(login, { key }), (request, response) => response.send('welcome\n'));

const server = app.listen(process.env.PORT ?? 3000, 'localhost', () => console.log(`http://localhost:${server.address().port}`));
