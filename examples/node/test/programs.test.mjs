// Runs the programs as they stand in their files, each on an empty server, and judges them by what they print and what is charged.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { after, before, beforeEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';
import { info, startTcpServer, used } from '../../../clients/node/test/server.mjs';

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

/**
 * Runs a program, and returns what it prints. The programs have the default time-outs, which may be too short on a busy machine: then a
 * call is `Unavailable`, and the program is run again.
 */
async function printed(name, left = 10) {
  tested.add(name);
  const env = { ...process.env, REDIS_URL: `redis://127.0.0.1:${server.port}` };
  const child = spawn(process.execPath, [name], { cwd: FOLDER, env, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  let [text, errors] = ['', ''];
  child.stdout.on('data', (data) => (text += data));
  child.stderr.on('data', (data) => (errors += data));
  const [code] = await once(child, 'close');
  running.delete(child);
  if (left && /Unavailable|waiting again/.test(errors)) {
    await redis.flushall();
    return printed(name, left - 1);
  }
  assert.deepEqual([code, errors], [0, '']);
  return text;
}

test('partner.mjs: no more than 5 calls in any second, and none is dropped', async () => {
  const lines = (await printed('partner.mjs')).trim().split('\n');
  const jobs = lines.map((line) => Number(line.match(/^\S+Z job (\d+) calls the partner now$/)[1]));
  assert.deepEqual(jobs.sort((one, other) => one - other), Array.from({ length: 24 }, (_, n) => n));
  assert.equal(await info(redis, 'rl_waiting_clients'), 0);
  assert.ok((await info(redis, 'rl_waits')) > 0);
});

test('gateway.mjs', async () => {
  const spent = 10 * 23 + 4 + 6;
  assert.equal(await printed('gateway.mjs'), `20 answers\nONE\nTWO\nTHREE\nada has ${20_000 - spent} tokens left\n`);
  assert.equal(await used(redis, '{llm}:all:tokens'), spent + 10 * 23);
  assert.equal(await redis.exists('{llm}:running:ada', '{llm}:running:bob'), 0);
  assert.ok((await used(redis, '{llm}:requests:ada')) > 0);
});

test('quota.mjs', async () => {
  assert.equal(await printed('quota.mjs'), '999, 4999, 9999 are left\n');
  await redis.call('RL.FIXED', '{quota}:month:customer:42', 10_000, '745h', 'COST', 9999);
  assert.match(await printed('quota.mjs'), /^The quota is used up. It is full again in \d+(\.\d+)? seconds.\n$/);
  // The denied call was charged to none of them.
  assert.equal(await used(redis, '{quota}:day:customer:42'), 1);
});

test('every program is run, and listed in the README', async () => {
  const programs = (await readdir(FOLDER)).filter((name) => name.endsWith('.mjs')).sort();
  assert.deepEqual(programs, [...tested].sort());
  const readme = await readFile(new URL('../../README.md', import.meta.url), 'utf8');
  for (const name of programs) assert.ok(readme.includes(`](node/${name})`), name);
});
