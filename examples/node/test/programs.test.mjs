// Runs the programs as they stand in their files, each on an empty server, and judges them by what they print and what is charged.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { after, before, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { eventually, info, startTcpServer, used } from '../../../clients/node/test/server.mjs';

const FOLDER = fileURLToPath(new URL('..', import.meta.url));
const tested = new Set();

let server, redis;
const running = new Set();
process.on('exit', () => running.forEach((child) => child.kill('SIGKILL')));
before(async () => {
  server = await startTcpServer();
  redis = new Redis(server.port, '127.0.0.1');
});
after(async () => {
  for (const child of running) child.kill('SIGKILL');
  redis?.disconnect();
  await server?.stop();
});
beforeEach(() => redis.flushall());

/** Starts a program. `text` is what it has printed, and `ended` its exit code. */
function start(name, url = `redis://127.0.0.1:${server.port}`) {
  tested.add(name);
  const env = { ...process.env, REDIS_URL: url, PORT: '0' };
  const child = spawn(process.execPath, [name], { cwd: FOLDER, env, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  const program = { text: '', errors: '', stop: () => child.kill('SIGKILL') };
  child.stdout.on('data', (data) => (program.text += data));
  child.stderr.on('data', (data) => (program.errors += data));
  program.ended = once(child, 'close').then(([code]) => {
    running.delete(child);
    program.code = code ?? -1;
    return code;
  });
  return program;
}

/** What a program prints that ends by itself. */
async function printed(name) {
  const program = start(name);
  const code = await program.ended;
  assert.deepEqual([code, program.errors], [0, '']);
  return program.text;
}

/** Starts a program that serves HTTP, and runs `use`, which gets a function that makes a request. */
async function serving(name, use, url) {
  const program = start(name, url);
  try {
    await eventually(() => program.text.includes('\n') || program.code !== undefined);
    assert.match(program.text, /^http:\/\/localhost:\d+\n$/, program.errors);
    await use((path = '/', method = 'GET') => fetch(program.text.trim() + path, { method }));
  } finally {
    program.stop();
    await program.ended;
  }
}

for (const name of ['express.mjs', 'fastify.mjs']) {
  test(`${name}: 429, header fields, and a limit of its own for one route`, () =>
    serving(name, async (ask) => {
      const first = await ask();
      assert.deepEqual([first.status, await first.text()], [200, 'hello\n']);
      assert.equal(first.headers.get('RateLimit-Policy'), '"pages";q=10;w=60');
      assert.equal(first.headers.get('RateLimit'), '"pages";r=4;t=6');
      assert.equal((await ask('/report')).status, 200);
      const denied = await ask('/report');
      assert.equal(denied.status, 429);
      assert.match(denied.headers.get('Retry-After'), /^\d+$/);
      for (const status of [200, 200, 200, 200, 200, 429]) assert.equal((await ask('/login', 'POST')).status, status);
      assert.equal(await redis.exists('web:login:127.0.0.1', 'web:login:::1/56', 'web:login:::/56'), 1);
    }));
}

test('express.mjs without Redis: pages are served, and logins are not', () =>
  serving('express.mjs', async (ask) => {
    assert.equal((await ask()).status, 200);
    assert.equal((await ask('/login', 'POST')).status, 503);
  }, 'redis://127.0.0.1:1'));

test('express-rate-limit.mjs', () =>
  serving('express-rate-limit.mjs', async (ask) => {
    for (let n = 0; n < 10; n++) assert.equal((await ask()).status, 200);
    assert.equal((await ask()).status, 429);
    const [key, ...more] = await redis.keys('web:store:60000:*');
    assert.deepEqual([await used(redis, key), more], [11, []]);
  }));

test('express-rate-limit.mjs without Redis goes on', () =>
  serving('express-rate-limit.mjs', async (ask) => assert.equal((await ask()).status, 200), 'redis://127.0.0.1:1'));

test('partner.mjs: no more than 5 calls in any second, and none is dropped', async () => {
  const lines = (await printed('partner.mjs')).trim().split('\n');
  const jobs = lines.map((line) => Number(line.match(/^\S+Z job (\d+) calls the partner now$/)[1]));
  assert.deepEqual(jobs.sort((one, other) => one - other), Array.from({ length: 24 }, (_, n) => n));
  assert.equal(await info(redis, 'rl_waiting_clients'), 0);
  assert.ok((await info(redis, 'rl_waits')) > 0);
});

test('tokens.mjs: thirty calls wait for a budget of nine estimates, and pay what they used', async () => {
  const waits = await info(redis, 'rl_waits');
  const spent = Array.from({ length: 30 }, (_, n) => Math.floor(`question ${n}`.length / 3) + 20).reduce((one, other) => one + other);
  assert.equal(await printed('tokens.mjs'), `30 answers\n${10_000 - spent} tokens are left\n`);
  assert.equal(await used(redis, 'tokens:team-1'), spent);
  assert.ok((await info(redis, 'rl_waits')) > waits);
});

test('gateway.mjs', async () => {
  const spent = 10 * 23 + 4 + 6;
  assert.equal(await printed('gateway.mjs'), `20 answers\nONE\nTWO\nTHREE\nada has ${20_000 - spent} tokens left\n`);
  assert.equal(await used(redis, '{llm}:all:tokens'), spent + 10 * 23);
  assert.equal(await redis.exists('{llm}:running:ada', '{llm}:running:bob'), 0);
  assert.ok((await used(redis, '{llm}:requests:ada')) > 0);
});

test('jobs.mjs', async () => {
  const names = ['ada', 'bob', 'eve', 'kim', 'max'];
  assert.equal(await printed('jobs.mjs'), `${names.map((name) => `a report for ${name}\n`).join('')}2 places are free\n`);
});

test('events.mjs: few calls of the server', async () => {
  const [wallet, login] = [await info(redis, 'rl_slide_calls'), await info(redis, 'rl_fixed_calls')];
  assert.equal(await printed('events.mjs'), '250 events recorded\n5 attempts let through\n');
  assert.equal(await used(redis, 'events:site-1'), 250);
  assert.ok((await info(redis, 'rl_slide_calls')) - wallet <= 5);
  assert.ok((await info(redis, 'rl_fixed_calls')) - login < 500);
});

test('quota.mjs', async () => {
  assert.equal(await printed('quota.mjs'), '9999 are left\n');
  await redis.call('RL.FIXED', 'quota:month:customer:42', 10_000, '746h', 'COST', 9999);
  assert.match(await printed('quota.mjs'), /^The quota is used up. It is full again in \d+(\.\d+)? seconds.\n$/);
});

test('central-limits.mjs', async () => {
  assert.equal(await printed('central-limits.mjs'), '19 are left\n');
  await redis.hset('limits', 'api', 'GCRA 0 1');
  assert.equal(await printed('central-limits.mjs'), 'All calls are refused now.\n');
  await redis.hset('limits', 'api', 'GCRA 1 1h');
  await redis.call('RL.GCRA', 'limit:api:gcra:user:42', 1, '1h', 'FORCE', 1);
  assert.match(await printed('central-limits.mjs'), /^Try again in \d{4,}(\.\d+)? seconds\.\n$/);
});

test('every program is run, and listed in the README', async () => {
  const programs = (await readdir(FOLDER)).filter((name) => name.endsWith('.mjs')).sort();
  assert.deepEqual(programs, [...tested].sort());
  const readme = await readFile(new URL('../../README.md', import.meta.url), 'utf8');
  for (const name of programs) assert.ok(readme.includes(`](node/${name})`), name);
});
