// Tests the budget of tokens by what the server has charged.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, before, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Redis } from 'ioredis';
import { OverBudget, withBudget } from '../budget.mjs';
import { eventually, info, inspect, startProxy, startServer } from './server.mjs';

// Without commandTimeout, ioredis never settles the promise of a call whose connection closed. Long enough for a busy machine.
const ONCE = { autoResendUnfulfilledCommands: false, commandTimeout: 1000 };
const TOKENS = { key: 'llm:tokens', algorithm: 'FIXED', limit: 1000, period: 3600 };
const REQUESTS = { key: 'llm:requests', algorithm: 'FIXED', limit: 10, period: 3600, cost: 1 };
const BOTH = [REQUESTS, TOKENS];
// Longer than the period: a shorter wait is denied at once.
const LONG_S = 7200;
const HURRIED = { estimate: 300, wait: 0.001 };

let server;
let redis;

before(async () => {
  server = await startServer();
  redis = new Redis({ path: server.path, ...ONCE });
});
after(async () => {
  redis?.disconnect();
  await server?.stop();
});
beforeEach(() => redis.flushall());

const used = async ({ key } = TOKENS) => (await inspect(redis, key))?.used ?? 0;
const ids = async ({ key } = TOKENS) => (await inspect(redis, key))?.ids ?? 0;
const waiting = () => info(redis, 'rl_waiting_clients');
const broken = async () => {
  throw new Error('the model is down');
};

for (const algorithm of ['FIXED', 'SLIDE', 'GCRA', 'BUCKET']) {
  test(`the estimate is settled to what was used, ${algorithm}`, async () => {
    const limits = [{ ...TOKENS, algorithm, period: 86_400 }];
    let total = 0;
    for (const [spent, charged] of [[120, 120], [450, 450], [0, 0], [undefined, 300]]) {
      const answer = await withBudget(redis, limits, HURRIED, async (charge) => {
        assert.deepEqual([await used(), await ids()], [total + 300, 1]);
        charge.used = spent;
        return 'an answer';
      });
      total += charged;
      assert.deepEqual([answer, await used(), await ids()], ['an answer', total, 0]);
    }
    await assert.rejects(withBudget(redis, limits, HURRIED, broken), (error) => {
      return error instanceof OverBudget && error.key === TOKENS.key && error.retryAfter > 0;
    });
    await assert.rejects(withBudget(redis, limits, { ...HURRIED, estimate: 1001 }, broken), /never/);
    assert.equal(await used(), total);
  });
}

test('a failure gives everything back unless used is set', async () => {
  await assert.rejects(withBudget(redis, BOTH, HURRIED, broken), /the model is down/);
  assert.deepEqual([await used(), await used(REQUESTS)], [0, 0]);
  const halfway = async (charge) => {
    charge.used = 80;
    await broken();
  };
  await assert.rejects(withBudget(redis, BOTH, HURRIED, halfway), /the model is down/);
  assert.deepEqual([await used(), await used(REQUESTS), await ids(), await ids(REQUESTS)], [80, 1, 0, 0]);
});

test('if one limit denies, the others are given back', async () => {
  await withBudget(redis, BOTH, { ...HURRIED, estimate: 700 }, async () => {
    await assert.rejects(withBudget(redis, BOTH, { ...HURRIED, estimate: 301 }, broken), OverBudget);
    assert.deepEqual([await used(REQUESTS), await used()], [1, 700]);
  });
  for (const wrong of [{ estimate: 0 }, { wait: 0 / 0 }, { wait: 86_401 }]) {
    await assert.rejects(withBudget(redis, BOTH, { ...HURRIED, ...wrong }, broken), /COST|wait/);
  }
  assert.deepEqual([await used(REQUESTS), await used()], [1, 700]);
});

test('an abort while the last call is under way gives back its charge', async () => {
  const control = new AbortController();
  const calls = { isCluster: false, sendCommand: (command) => redis.sendCommand(command).finally(() => control.abort()) };
  const call = withBudget(calls, [TOKENS], { ...HURRIED, signal: control.signal }, () => assert.fail('ran after the abort'));
  await assert.rejects(call, { name: 'AbortError' });
  assert.deepEqual([await used(), await ids()], [0, 0]);
});

test('thirty calls wait in line for a budget of four estimates', async () => {
  const seen = [];
  const call = (n) =>
    withBudget(redis, [TOKENS], { estimate: 250, wait: LONG_S }, async (charge) => {
      seen.push(await used());
      await sleep(5);
      if (n % 3 === 0) await broken();
      charge.used = n;
    });
  const numbers = Array.from({ length: 30 }, (_, n) => n);
  const results = await Promise.allSettled(numbers.map(call));
  assert.deepEqual(results.map(({ status }) => status), numbers.map((n) => (n % 3 ? 'fulfilled' : 'rejected')));
  assert.equal(seen.length, 30);
  assert.ok(Math.max(...seen) <= 1000);
  const sum = numbers.filter((n) => n % 3).reduce((one, other) => one + other);
  assert.deepEqual([await used(), await ids(), await waiting()], [sum, 0, 0]);
  assert.ok((await info(redis, 'rl_waits')) > 0);
});

test('an abort gives back the charge, or leaves the line', async () => {
  const start = () => {
    const control = new AbortController();
    const { signal } = control;
    const request = () => sleep(3_600_000, undefined, { signal });
    const call = withBudget(redis, BOTH, { estimate: 600, wait: LONG_S, signal }, request);
    return [control, assert.rejects(call, { name: 'AbortError' })];
  };
  const [running, failed] = start();
  await eventually(async () => (await used()) === 600);
  const [waiter, left] = start();
  await eventually(async () => (await waiting()) === 1);
  assert.equal(await used(REQUESTS), 2);
  waiter.abort();
  await left;
  await eventually(async () => (await waiting()) === 0);
  assert.deepEqual([await used(REQUESTS), await used()], [1, 600]);
  running.abort();
  await failed;
  assert.deepEqual([await used(REQUESTS), await used()], [0, 0]);
  const before = AbortSignal.abort();
  await assert.rejects(withBudget(redis, BOTH, { ...HURRIED, signal: before }, broken), { name: 'AbortError' });
  assert.deepEqual([await used(REQUESTS), await used()], [0, 0]);
});

for (const [what, options] of [['request', { maxRetriesPerRequest: 0 }], ['reply', {}]]) {
  test(`a lost ${what} charges once and settles once`, async () => {
    const proxy = await startProxy(server);
    const lossy = new Redis({ path: proxy.path, ...ONCE, ...options });
    lossy.on('error', () => {});
    try {
      const losses = [[what, 'COST'], [what, 'RL.SETTLE']];
      let total = 0;
      for (const spent of [120, 450]) {
        for (const loss of losses) proxy.lose(...loss);
        await withBudget(lossy, [TOKENS], HURRIED, async (charge) => {
          assert.equal(await used(), total + 300);
          charge.used = spent;
        });
        total += spent;
        assert.deepEqual([await used(), await ids()], [total, 0]);
      }
      for (const loss of losses) proxy.lose(...loss);
      await assert.rejects(withBudget(lossy, [TOKENS], HURRIED, broken), /the model is down/);
      assert.deepEqual([await used(), await ids()], [total, 0]);
      assert.deepEqual(proxy.lost, [...losses, ...losses, ...losses]);

      // A call in line is granted by the server when this block ends; then its reply is lost.
      await redis.flushall();
      let waiter;
      await withBudget(redis, [TOKENS], { estimate: 600, wait: LONG_S }, async (charge) => {
        proxy.lose('reply', 'BLOCK');
        waiter = withBudget(lossy, [TOKENS], { estimate: 600, wait: LONG_S }, async (inner) => {
          assert.equal(await used(), 700);
          inner.used = 50;
        });
        await eventually(async () => (await waiting()) === 1);
        charge.used = 100;
      });
      await waiter;
      assert.equal(await used(), 150);
      assert.deepEqual(proxy.lost.at(-1), ['reply', 'BLOCK']);
    } finally {
      lossy.disconnect();
      await proxy.stop();
    }
  });
}

test('when the id is forgotten, only the excess is charged', async () => {
  for (const [spent, charged] of [[450, 150], [120, 0], [undefined, 0], [2000, 1700]]) {
    await withBudget(redis, [TOKENS], HURRIED, async (charge) => {
      await redis.del(TOKENS.key);
      charge.used = spent;
    });
    assert.equal(await used(), charged);
    await redis.del(TOKENS.key);
  }
});

test('a process that restarts is charged once for the same id', async () => {
  const recipe = pathToFileURL(fileURLToPath(new URL('../budget.mjs', import.meta.url)));
  const program = `
    import { createRequire } from 'node:module';
    import { withBudget } from ${JSON.stringify(recipe)};
    const { Redis } = createRequire(${JSON.stringify(recipe)})('ioredis');
    const redis = new Redis({ path: ${JSON.stringify(server.path)} });
    await withBudget(redis, [${JSON.stringify(TOKENS)}], { estimate: 300, wait: 1, id: 'job-7' }, () => {
      console.log('in the middle');
      return new Promise((done) => setTimeout(done, 3_600_000));
    });`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  try {
    const [line] = await Promise.race([once(child.stdout, 'data'), exited]);
    assert.equal(String(line), 'in the middle\n');
  } finally {
    child.kill('SIGKILL');
    await exited;
  }
  assert.equal(await used(), 300);
  // This time the estimate is higher, but the charge is the one of the first time.
  await withBudget(redis, [TOKENS], { estimate: 400, wait: 1, id: 'job-7' }, async (charge) => {
    assert.equal(await used(), 300);
    charge.used = 350;
  });
  assert.equal(await used(), 350);
  // The charge that is settled is the first one, whatever the second asks for.
  await redis.call('RL.FIXED', TOKENS.key, 1000, 3600, 'COST', 300, 'ID', 'job-8');
  await withBudget(redis, [TOKENS], { estimate: 400, wait: 1, id: 'job-8' }, async () => assert.equal(await used(), 650));
  assert.equal(await used(), 650);
});

test('when Redis is down: an error before the request, and none after it', async (context) => {
  const warnings = context.mock.method(console, 'warn', () => {});
  const other = await startServer();
  const client = new Redis({ path: other.path, ...ONCE, maxRetriesPerRequest: 0 });
  client.on('error', () => {});
  try {
    const answer = await withBudget(client, [TOKENS], HURRIED, async (charge) => {
      await other.kill();
      charge.used = 120;
      return 'an answer';
    });
    assert.equal(answer, 'an answer');
    assert.match(warnings.mock.calls[0].arguments[0], /^llm:tokens: 300 of \S+ were not settled to 120: /);
    let ran = false;
    await assert.rejects(withBudget(client, [TOKENS], HURRIED, async () => (ran = true)));
    assert.equal(ran, false);
  } finally {
    client.disconnect();
    await other.stop();
  }
});
