// Runs the programs in the README of the recipes. Only the server's address, the client's time-out and the port that the
// program listens on are replaced.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { inspect, startServer } from './server.mjs';

const RECIPES = fileURLToPath(new URL('..', import.meta.url));

let server;
before(async () => (server = await startServer()));
after(() => server?.stop());

const readme = await readFile(join(RECIPES, '../README.md'), 'utf8');
const [middleware, store, wait, budget, gateway, calendar, central] = [...readme.matchAll(/```js\n(.*?)```/gs)].map(([, program]) => program);

/** Runs a program, and returns its exports. `last` is replaced by `exported`. */
async function run(program, last, exported) {
  const changes = [
    ['new Redis({', `new Redis({ path: ${JSON.stringify(server.path)},`],
    // On a busy machine a reply may take longer.
    ['commandTimeout: 200', 'commandTimeout: 20_000'],
    ['wait: 90', 'wait: 90, patience: 20'],
    [last, exported],
    ...['rate-limit', 'store', 'wait', 'budget', 'gateway', 'calendar-limit', 'central-limits'].map((name) => {
      return [`'./${name}.mjs'`, JSON.stringify(pathToFileURL(join(RECIPES, `${name}.mjs`)))];
    }),
  ];
  for (const [here, there] of changes) program = program.replace(here, there);
  assert.match(program, /path: .*20_000.*\nexport /s);
  // Inside the project, because Node.js looks for packages there.
  const folder = await mkdtemp(join(RECIPES, 'node_modules/.readme-'));
  try {
    const file = join(folder, 'program.mjs');
    await writeFile(file, program);
    return await import(pathToFileURL(file));
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Runs a program that serves HTTP, requests these paths one after the other, and returns the statuses. */
async function serve(program, paths) {
  const exported = "export const http = app.listen(0, '127.0.0.1');\nexport { redis };";
  const { http, redis } = await run(program, 'app.listen(3000);', exported);
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
}

test('the middleware', async () => {
  // The program has no routes, so a request that is let through gets 404.
  assert.deepEqual(await serve(middleware, Array(6).fill('/login')), [...Array(5).fill(404), 429]);
  assert.deepEqual(await serve(middleware, Array(5).fill('/')), [...Array(4).fill(404), 429]);
});

test('the store', async () => {
  assert.deepEqual(await serve(store, Array(101).fill('/')), [...Array(100).fill(404), 429]);
});

test('the wait', async () => {
  const { granted, redis } = await run(wait, /if \(granted\).*/, 'export { granted, redis };');
  redis.disconnect();
  assert.equal(granted, 1);
});

test('the budget', async () => {
  const { complete, redis } = await run(budget, 'async function complete', 'export { redis };\nexport async function complete');
  const used = async (key) => (await inspect(redis, key)).used;
  const model = {
    async complete(prompt, { maxTokens }) {
      assert.equal(await used('llm:tokens'), prompt.length / 3 + maxTokens);
      return { usage: { totalTokens: 70 } };
    },
  };
  try {
    assert.equal((await complete(model, 'x'.repeat(300))).usage.totalTokens, 70);
    assert.deepEqual([await used('llm:tokens'), await used('llm:requests')], [70, 1]);
  } finally {
    redis.disconnect();
  }
});

test('the gateway', async () => {
  const { complete, redis } = await run(gateway, 'async function complete', 'export { redis };\nexport async function complete');
  const facts = (key) => inspect(redis, `{gateway}:${key}`);
  const model = {
    async complete(prompt, { maxTokens }) {
      const [all, own, running] = await Promise.all(['tokens', 'ada:tokens', 'ada:running'].map(facts));
      assert.deepEqual([all.used, own.used, running.held], [1100, 1100, 1]);
      assert.equal(prompt.length / 3 + maxTokens, 1100);
      return { usage: { totalTokens: 70 } };
    },
  };
  try {
    assert.equal((await complete(model, 'ada', 'x'.repeat(300))).usage.totalTokens, 70);
    const [all, own, running] = await Promise.all(['tokens', 'ada:tokens', 'ada:running'].map(facts));
    assert.deepEqual([all.used, own.used, running], [70, 70, undefined]);
  } finally {
    redis.disconnect();
  }
});

test('the calendar', async () => {
  const { granted, remaining, redis } = await run(calendar, /if \(!granted\).*/, 'export { granted, remaining, redis };');
  redis.disconnect();
  assert.deepEqual([granted, remaining], [1, 9999]);
});

test('the central limits', async (t) => {
  const printed = t.mock.method(console, 'log', () => {}).mock;
  const exported = [/$/, '\nexport { granted, remaining, redis };\n'];
  const { granted, remaining, redis } = await run(central, ...exported);
  try {
    assert.deepEqual([granted, remaining], [1, 19]);
    assert.equal(printed.callCount(), 0);
    const denials = { 'GCRA 0 1': /^All calls are refused now\.$/, 'GCRA 1 1h': /^Try again in \d{4,}(\.\d+)? seconds\.$/ };
    for (const [policy, said] of Object.entries(denials)) {
      await redis.hset('limits', 'api', policy);
      await redis.call('RL.GCRA', 'limit:api:gcra:user:42', 1, '1h', 'FORCE', 1);
      printed.resetCalls();
      (await run(central, ...exported)).redis.disconnect();
      assert.equal(printed.callCount(), 1);
      assert.match(printed.calls[0].arguments[0], said);
    }
  } finally {
    redis.disconnect();
  }
});
