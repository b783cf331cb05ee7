// Tests the package as users install it: packed as README.md says, in an empty project. Runs the programs of README.md as printed.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { startTcpServer } from './server.mjs';

const run = promisify(execFile);
const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const TSC = join(PACKAGE, 'node_modules/typescript/bin/tsc');
const QUIET = { npm_config_audit: 'false', npm_config_fund: 'false', npm_config_loglevel: 'error', npm_config_prefer_offline: 'true' };
const readme = await readFile(join(PACKAGE, 'README.md'), 'utf8');
const blocks = (language) => [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(([, text]) => text);

/** What the programs of README.md print, in their order. */
const PRINTED = [
  /^true 2 0\ntrue 1 0\ntrue 0 0\nfalse 0 [56](\.\d+)?\n\{\n {2}'RateLimit-Policy': '"api";q=10;w=60',\n {2}RateLimit: '"api";r=0;t=6',[^]*'Retry-After': '6'\n\}\n$/,
  /^\[ 1, 2, 3, 4 \]\nTimeoutError\ntrue \[ 'report' \]\n$/,
  /^(30|2\d(\.\d+)?)\ntrue\n$/,
  /^10\n50\n$/,
  /^19550\n3 false\n19538 59\n$/,
  /^1000\nrepeated\n$/,
  new RegExp(
    '^200 "free";r=1;t=30 "hello"\n200 "free";r=0;t=60 "hello"\n' +
      '429 "free";r=0;t=\\d+ \\{"type":"[^"]*#quota-exceeded","title":"[^"]*","status":429,"violated-policies":\\["free"\\]\\}\n' +
      '200 "pro";r=99;t=1, "mail";r=0;t=86400 "hello"\n429 "pro";r=\\d+;t=\\d, "mail";r=0;t=\\d+ \\{"message":"again in 24 h"\\}\n200 null "hello"\n$',
  ),
  /^200\n429\n200\n429\n1\n$/,
  /^true 503\ntrue down 1\ntrue down 2\ntrue down 3\ntrue down 1\ntrue down 2\nfalse down 2\n$/,
];

/** The types of the other parts of the package. */
const PARTS = `import type { IncomingMessage, ServerResponse } from 'node:http';
import { addressKey, Fixed, Lease, type LeaseLimit, type Limits, Named, type RateLimit } from 'redis-rl';
import { rateLimit } from 'redis-rl/express';
import { RedisRlStore } from 'redis-rl/express-rate-limit';
import { rateLimit as hook } from 'redis-rl/fastify';
declare const limits: Limits;
const day: RateLimit = limits.limit('day', new Fixed('1000/d', { zone: 'America/New_York' }));
const key = (request: IncomingMessage) => addressKey(request.socket.remoteAddress);
export const middleware: (request: IncomingMessage, response: ServerResponse, next: () => void) => Promise<void> =
  rateLimit(() => limits.wallet(day), { key, skip: async () => false, denied: (_, response, { problem }) => response.end(String(problem())) });
export const others = [hook(day), new RedisRlStore(limits, { name: 'pages' }), rateLimit(day, { key: () => null })];
export const stop = async (answer: IncomingMessage): Promise<number> =>
  (await day.observe('a', answer, { maxPause: '1m' })) + (await day.observe('a', await fetch('http://partner'))) + (await day.pause('a', 30));
const policy = new Named('policy:jobs', new Lease(2, 30), { overrides: (key) => ['policy:' + String(key)] });
export const jobs: [LeaseLimit, RateLimit] = [limits.limit('jobs', policy), limits.limit('day', new Named('policy:day', new Fixed('1/d')))];
export const goOn: Promise<void> = day.resume('a');
// @ts-expect-error: a cost is a number
rateLimit(day, { cost: () => 'much' });
// @ts-expect-error: this is no part of the interface
day.keyOf('key');
`;

let folder, server;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'redis rl-'));
  server = await startTcpServer();
});
after(async () => {
  await server?.stop();
  if (folder) await rm(folder, { recursive: true });
});

/**
 * Runs a program until it prints what it must, 10 times at most. They have the default time-outs, and print times that pass: on a machine
 * that stands still for a while, one may fail, or print other times.
 */
async function prints(cwd, file, expected) {
  const env = { ...process.env, REDIS_URL: `redis://127.0.0.1:${server.port}` };
  for (let left = 9; ; left--) {
    await server.empty();
    try {
      assert.match((await run(process.execPath, ['--no-warnings', file], { cwd, env, timeout: 60_000 })).stdout, expected);
      return;
    } catch (error) {
      if (!left || !(error.code === 'ERR_ASSERTION' || /Unavailable/.test(error.stderr))) throw error;
    }
  }
}

test('the sources pass the strict check of types', () => run(process.execPath, [TSC, '-p', PACKAGE]).catch(({ stdout }) => assert.fail(stdout)));

test('packed and installed in an empty project', async (t) => {
  // As in a checkout, without what the tests have installed or built.
  const checkout = join(folder, 'checkout');
  const kept = (path) => !['node_modules', 'dist'].includes(basename(path));
  await cp(PACKAGE, join(checkout, 'clients/node'), { recursive: true, filter: kept });
  const commands = blocks('bash');
  assert.deepEqual(commands, ['npm ci --prefix clients/node && npm pack ./clients/node\n']);
  await run('bash', ['-c', commands[0]], { cwd: checkout, env: { ...process.env, ...QUIET } });
  const tarball = join(checkout, 'redis-rl-0.1.0.tgz');
  const { stdout } = await run('tar', ['-tzf', tarball]);
  for (const file of stdout.trim().split('\n')) assert.match(file, /^package\/(dist\/[\w/-]+\.(js|d\.ts|json)|README\.md|LICENSE|package\.json)$/);

  const path = join(folder, 'project');
  await mkdir(path);
  await writeFile(join(path, 'package.json'), JSON.stringify({ name: 'project', private: true, type: 'module' }));
  await run('npm', ['install', '--offline', tarball], { cwd: path, env: { ...process.env, ...QUIET } });
  for (const other of ['@valkey', 'long', 'protobufjs', 'ioredis', 'redis', 'express', 'express-rate-limit', 'fastify', '@types']) {
    await symlink(join(PACKAGE, 'node_modules', other), join(path, 'node_modules', other));
  }

  const programs = blocks('js');
  assert.equal(programs.length, PRINTED.length);
  for (const [at, program] of programs.entries()) {
    await t.test(program.split('\n').find((line) => line.includes('.limit(')).trim(), async () => {
      await writeFile(join(path, `program-${at}.js`), program);
      await prints(path, `program-${at}.js`, PRINTED[at]);
    });
  }

  await t.test('the program in CommonJS', async () => {
    const [program, ...more] = blocks('cjs');
    assert.equal(more.length, 0);
    await writeFile(join(path, 'program.cjs'), program);
    await prints(path, 'program.cjs', /^95\n$/);
  });

  await t.test('`import` and `require` get the same classes', async () => {
    const both = `import { createRequire } from 'node:module';
      const require = createRequire(import.meta.url);
      for (const name of ['redis-rl', 'redis-rl/express', 'redis-rl/fastify', 'redis-rl/express-rate-limit']) {
        const [one, other] = [await import(name), require(name)];
        for (const key of Object.keys(other)) if (one[key] !== other[key]) throw new Error(key);
        console.log(Object.keys(other).sort().join(' '));
      }`;
    await writeFile(join(path, 'both.js'), both);
    const { stdout } = await run(process.execPath, ['both.js'], { cwd: path });
    const [main, ...others] = stdout.trim().split('\n');
    assert.deepEqual(others, ['rateLimit', 'rateLimit', 'RedisRlStore']);
    // The table of clients/README.md has all of these, and nothing else is exported.
    assert.equal(main, [
      'Admission', 'AllDecision', 'Bucket', 'Charge', 'Closed', 'Decision', 'Fixed', 'Gcra', 'Held', 'InvalidArgument', 'InvalidCost',
      'InvalidId', 'InvalidKey', 'InvalidLimit', 'InvalidWait', 'Lease', 'LeaseLimit', 'LeaseLost', 'Limits', 'Named', 'NoModule', 'NotAllowed',
      'RateLimit', 'RateLimitError', 'RateLimited', 'Slide', 'Unavailable', 'UnexpectedReply', 'Wallet', 'WrongType', 'addressKey', 'headers',
    ].join(' '));
  });

  for (const [kind, options] of Object.entries({
    'module node16': ['--module', 'node16'],
    CommonJS: ['--module', 'commonjs', '--moduleResolution', 'node10'],
  })) {
    await t.test(`the program in TypeScript, ${kind}`, async () => {
      const [program, ...more] = blocks('ts');
      assert.equal(more.length, 0);
      await writeFile(join(path, 'program.ts'), program);
      await writeFile(join(path, 'parts.ts'), PARTS);
      const all = ['--strict', '--noEmit', '--target', 'ES2022', '--skipLibCheck', 'false', '--types', 'node', ...options, 'program.ts', 'parts.ts'];
      await run(process.execPath, [TSC, ...all], { cwd: path }).catch(({ stdout }) => assert.fail(stdout));
    });
  }
});
