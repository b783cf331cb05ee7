// Tests the package as users install it: from the folder, and packed. Runs the programs of README.md as printed.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { startTcpServer } from './server.mjs';

const run = promisify(execFile);
const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const TSC = join(PACKAGE, 'node_modules/typescript/bin/tsc');
const OFFLINE = ['--offline', '--no-audit', '--no-fund', '--loglevel=error'];
const readme = await readFile(join(PACKAGE, 'README.md'), 'utf8');
const blocks = (language) => [...readme.matchAll(new RegExp(`^\`\`\`${language}\n(.*?)^\`\`\``, 'gms'))].map(([, text]) => text);

/** What the programs of README.md print, in their order. */
const PRINTED = [
  /^true 2 0\ntrue 1 0\ntrue 0 0\nfalse 0 [56](\.\d+)?\n\{\n {2}'RateLimit-Policy': '"api";q=10;w=60',\n {2}RateLimit: '"api";r=0;t=6',[^]*'Retry-After': '6'\n\}\n$/,
  /^5 100 95\n$/,
  /^\[ 1, 2, 3, 4 \]\nTimeoutError\n429 true RateLimit-Policy RateLimit X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset Retry-After\n$/,
  /^Hello 99550\n$/,
  /^done 2\n$/,
  /^true "second";q=5;w=1, "day";q=1000;w=86400\n$/,
  /^19988 59\n$/,
  /^1000\nfalse\n$/,
  /^200 "api";r=1;t=30 null\n200 "api";r=0;t=60 null\n429 "api";r=0;t=(\d+) \1\n$/,
  /^200\n429\n200\n429\n$/,
  /^1\n$/,
  /^true 503\ntrue false\n$/,
  /^95\n$/,
];

let folder, server;
before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'redis rl-'));
  server = await startTcpServer();
});
after(async () => {
  await server?.stop();
  if (folder) await rm(folder, { recursive: true });
});

/** Makes an empty project, installs the package in it, and links the clients, as if they were installed, too. */
async function project(name, what) {
  const path = join(folder, name);
  await mkdir(path);
  await writeFile(join(path, 'package.json'), JSON.stringify({ name, private: true, type: 'module' }));
  await run('npm', ['install', ...OFFLINE, what], { cwd: path });
  for (const other of ['@valkey', 'long', 'protobufjs', 'ioredis', 'redis', 'express', 'express-rate-limit', 'fastify', '@types']) {
    await symlink(join(PACKAGE, 'node_modules', other), join(path, 'node_modules', other));
  }
  return path;
}

async function node(cwd, file) {
  const env = { ...process.env, REDIS_URL: `redis://127.0.0.1:${server.port}` };
  const { stdout, stderr } = await run(process.execPath, [file], { cwd, env, timeout: 60_000 });
  assert.equal(stderr, '');
  return stdout;
}

test('the types are those of the sources, and the sources pass the strict check', async () => {
  await run(process.execPath, [TSC, '-p', PACKAGE]);
  const out = join(folder, 'types');
  await run(process.execPath, [TSC, '-p', join(PACKAGE, 'tsconfig.types.json'), '--outDir', out]);
  const files = async (path) => {
    const all = await readdir(path, { withFileTypes: true, recursive: true });
    const names = all.filter((one) => one.isFile()).map((one) => join(one.parentPath ?? one.path, one.name)).sort();
    return Promise.all(names.map(async (one) => [one.slice(path.length), await readFile(one, 'utf8')]));
  };
  const [kept, made] = [await files(join(PACKAGE, 'types')), await files(out)];
  assert.deepEqual(kept.map(([name]) => name), made.map(([name]) => name), 'run `npm run types`');
  for (const [at, [name, text]] of kept.entries()) assert.ok(text === made[at][1], `${name} is not up to date: run \`npm run types\``);
});

test('installed from the folder, it runs', async () => {
  const path = await project('from-folder', PACKAGE);
  await writeFile(join(path, 'main.js'), blocks('js')[0]);
  assert.match(await node(path, 'main.js'), PRINTED[0]);
});

test('packed and installed, the programs of README.md run as printed', async (t) => {
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', folder, ...OFFLINE], { cwd: PACKAGE });
  const [{ filename, files }] = JSON.parse(stdout);
  assert.ok(files.every(({ path }) => /^(src|types)\/|^(README\.md|LICENSE|package\.json)$/.test(path)));
  const path = await project('packed', join(folder, filename));
  const programs = blocks('js');
  assert.equal(programs.length, PRINTED.length);
  for (const [at, program] of programs.entries()) {
    await t.test(program.split('\n').find((line) => line.includes('.limit('))?.trim() ?? program, async () => {
      await server.empty();
      await writeFile(join(path, `program-${at}.js`), program);
      assert.match(await node(path, `program-${at}.js`), PRINTED[at]);
    });
  }
  await t.test('the program in TypeScript', async () => {
    const [program, ...more] = blocks('ts');
    assert.equal(more.length, 0);
    await writeFile(join(path, 'program.ts'), program);
    const options = ['--strict', '--noEmit', '--target', 'ES2022', '--module', 'NodeNext', '--skipLibCheck', 'false', '--types', 'node'];
    await run(process.execPath, [TSC, ...options, 'program.ts'], { cwd: path }).catch(({ stdout }) => assert.fail(stdout));
  });
});
