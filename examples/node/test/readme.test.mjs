// The programs in the README of the recipes run as they stand there, but for where the server is and where they listen.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { startServer } from './server.mjs';

const RECIPES = fileURLToPath(new URL('..', import.meta.url));

let server;
before(async () => (server = await startServer()));
after(() => server?.stop());

const readme = await readFile(join(RECIPES, '../README.md'), 'utf8');
const [middleware, store] = [...readme.matchAll(/```js\n(.*?)```/gs)].map(([, program]) => program);

/** Runs a program, asks for these paths, one after the other, and tells the statuses. */
async function run(program, paths) {
  const changes = [
    ['new Redis({', `new Redis({ path: ${JSON.stringify(server.path)},`],
    ['app.listen(3000);', "export const http = app.listen(0, '127.0.0.1');\nexport { redis };"],
    ...['rate-limit', 'store'].map((name) => [`'./${name}.mjs'`, JSON.stringify(pathToFileURL(join(RECIPES, `${name}.mjs`)))]),
  ];
  for (const [here, there] of changes) program = program.replace(here, there);
  assert.match(program, /path: .*export const http/s);
  // Within the project, where its packages are found.
  const folder = await mkdtemp(join(RECIPES, 'node_modules/.readme-'));
  try {
    const file = join(folder, 'program.mjs');
    await writeFile(file, program);
    const { http, redis } = await import(pathToFileURL(file));
    try {
      if (!http.listening) await once(http, 'listening');
      const statuses = [];
      for (const path of paths) statuses.push((await fetch(`http://127.0.0.1:${http.address().port}${path}`)).status);
      return statuses;
    } finally {
      http.closeAllConnections();
      http.close();
      redis.disconnect();
    }
  } finally {
    await rm(folder, { recursive: true });
  }
}

test('the middleware', async () => {
  // Nothing is served there: what is let through is not found.
  assert.deepEqual(await run(middleware, Array(6).fill('/login')), [...Array(5).fill(404), 429]);
  assert.deepEqual(await run(middleware, Array(5).fill('/')), [...Array(4).fill(404), 429]);
});

test('the store', async () => {
  assert.deepEqual(await run(store, Array(101).fill('/')), [...Array(100).fill(404), 429]);
});
