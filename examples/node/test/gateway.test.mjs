// Tests the gateway by what the server has charged.
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, Redis } from 'ioredis';
import { Denied, LeaseLost, withAdmission } from '../gateway.mjs';
import { eventually, info, inspect, startCluster, startProxy, startServer } from './server.mjs';

// Without commandTimeout, ioredis never settles the promise of a call whose connection closed. Long enough for a busy machine.
const ONCE = { autoResendUnfulfilledCommands: false, commandTimeout: 1000 };
const HOUR = 3600;
// Longer than the period: a shorter wait is denied at once.
const LONG_S = 2 * HOUR;
// On a busy machine a reply may take longer than the default patience.
const PATIENT = { patience: 20 };
const HURRIED = { estimate: 300, wait: 0.001, ...PATIENT };
const ALL = '{gateway}:tokens';

const keys = (tenant) => ['running', 'requests', 'tokens'].map((name) => `{gateway}:${tenant}:${name}`);
const [RUNNING, , TOKENS] = keys('acme');
const rules = ({ tenant = 'acme', ttl = HOUR, allTokens = 2000 } = {}) => {
  const [running, requests, tokens] = keys(tenant);
  return [
    { key: running, algorithm: 'LEASE', limit: 2, period: ttl },
    { key: requests, algorithm: 'FIXED', limit: 100, period: HOUR, cost: 1 },
    { key: tokens, algorithm: 'FIXED', limit: 1000, period: HOUR },
    { key: ALL, algorithm: 'FIXED', limit: allTokens, period: HOUR },
  ];
};

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

/** The calls that run, the requests, the tenant's tokens, and those of all tenants. */
async function charged(tenant = 'acme', client = redis) {
  const facts = await Promise.all([...keys(tenant), ALL].map((key) => inspect(client, key)));
  return facts.map((each) => each?.held ?? each?.used ?? 0);
}
const waiting = () => info(redis, 'rl_waiting_clients');
const broken = async () => {
  throw new Error('the model is down');
};

test('tokens are settled and the lease is released', async () => {
  let total = 0;
  for (const [n, [spent, left]] of [[120, 120], [450, 450], [0, 0], [undefined, 300]].entries()) {
    const answer = await withAdmission(redis, rules(), HURRIED, async (call) => {
      assert.deepEqual(await charged(), [1, n + 1, total + 300, total + 300]);
      call.used = spent;
      return 'an answer';
    });
    total += left;
    assert.deepEqual([answer, await charged()], ['an answer', [0, n + 1, total, total]]);
  }
  const refused = async (call) => {
    call.unused();
    await broken();
  };
  await assert.rejects(withAdmission(redis, rules(), { ...HURRIED, estimate: 100 }, refused), /the model is down/);
  assert.deepEqual(await charged(), [0, 4, 870, 870]);
  const halfway = async (call) => {
    call.used = 30;
    await broken();
  };
  await assert.rejects(withAdmission(redis, rules(), { ...HURRIED, estimate: 100 }, halfway), /the model is down/);
  assert.deepEqual(await charged(), [0, 5, 900, 900]);
  // The model may have done the work: the estimate stays. Without `wait`, the call does not wait.
  await assert.rejects(withAdmission(redis, rules(), { estimate: 60, ...PATIENT }, broken), /the model is down/);
  assert.deepEqual(await charged(), [0, 6, 960, 960]);
  assert.equal((await inspect(redis, TOKENS)).ids, 0);
});

test('a denied call charges nothing, and names the keys', async () => {
  await withAdmission(redis, rules(), { ...HURRIED, estimate: 700 }, async () => {
    await assert.rejects(withAdmission(redis, rules(), { ...HURRIED, estimate: 301 }, broken), (error) => {
      return error instanceof Denied && error.keys.join() === TOKENS && error.retryAfter > 3500;
    });
    await assert.rejects(withAdmission(redis, rules(), { estimate: 2001, wait: LONG_S, ...PATIENT }, broken), (error) => {
      return error.keys.join() === `${TOKENS},${ALL}` && error.retryAfter === undefined;
    });
    for (const wrong of [{ estimate: 0 }, { wait: 0 / 0 }, { wait: 86_401 }]) {
      await assert.rejects(withAdmission(redis, rules(), { ...HURRIED, ...wrong }, broken), /COST|wait/);
    }
    assert.deepEqual(await charged(), [1, 1, 700, 700]);
  });
});

test('thirty calls of three tenants share what all have', async () => {
  const seen = [];
  const tenants = ['ada', 'bob', 'eve'];
  const work = (n, tenant) =>
    withAdmission(redis, rules({ tenant, allTokens: 1000 }), { estimate: 250, wait: LONG_S, ...PATIENT }, async (call) => {
      seen.push(await charged(tenant));
      await sleep(5);
      if (n % 3 === 0) {
        call.unused();
        await broken();
      }
      call.used = n;
    });
  const numbers = Array.from({ length: 10 }, (_, n) => n);
  const calls = numbers.flatMap((n) => tenants.map((tenant) => [n, work(n, tenant)]));
  const results = await Promise.allSettled(calls.map(([, call]) => call));
  assert.deepEqual(results.map(({ status }) => status), calls.map(([n]) => (n % 3 ? 'fulfilled' : 'rejected')));
  assert.equal(seen.length, 30);
  assert.ok(seen.every(([held, , , ofAll]) => held <= 2 && ofAll <= 1000));
  const sum = numbers.filter((n) => n % 3).reduce((one, other) => one + other);
  for (const tenant of tenants) assert.deepEqual(await charged(tenant), [0, 6, sum, 3 * sum]);
  assert.ok((await info(redis, 'rl_waits')) > 0);
  assert.equal(await waiting(), 0);
});

test('a call that waits for its lease delays no other tenant, and leaves the line when it is aborted', async () => {
  const control = new AbortController();
  let finish;
  const done = new Promise((resolve) => (finish = resolve));
  const running = [1, 2].map(() => withAdmission(redis, rules(), { ...HURRIED, estimate: 100 }, () => done));
  await eventually(async () => (await charged())[0] === 2);
  const waits = { estimate: 100, wait: LONG_S, signal: control.signal, ...PATIENT };
  const left = assert.rejects(withAdmission(redis, rules(), waits, broken), { name: 'AbortError' });
  await eventually(async () => (await waiting()) === 1);
  await withAdmission(redis, rules({ tenant: 'bob' }), { ...HURRIED, estimate: 100 }, async () => {
    assert.deepEqual(await charged(), [2, 2, 200, 300]);
  });
  control.abort();
  await left;
  await eventually(async () => (await waiting()) === 0);
  finish();
  await Promise.all(running);
  assert.deepEqual(await charged(), [0, 2, 200, 300]);
});

for (const [what, options] of [['request', { maxRetriesPerRequest: 0 }], ['reply', {}]]) {
  test(`a lost ${what} charges once and settles once`, async () => {
    const proxy = await startProxy(server);
    const lossy = new Redis({ path: proxy.path, ...ONCE, ...options });
    lossy.on('error', () => {});
    try {
      const losses = ['RL.ALL', 'RENEW', 'RL.SETTLE', 'RL.RELEASE'].map((command) => [what, command]);
      let total = 0;
      for (const [n, spent] of [120, 450].entries()) {
        for (const loss of losses) proxy.lose(...loss);
        await withAdmission(lossy, rules(), HURRIED, async (call) => {
          assert.deepEqual(await charged(), [1, n + 1, total + 300, total + 300]);
          call.used = spent;
        });
        total += spent;
        assert.deepEqual(await charged(), [0, n + 1, total, total]);
      }
      assert.deepEqual(proxy.lost, [...losses, ...losses]);

      // A call in line is granted by the server when this block ends; then its reply is lost.
      await redis.flushall();
      let waiter;
      await withAdmission(redis, rules(), { estimate: 600, wait: LONG_S, ...PATIENT }, async (call) => {
        proxy.lose('reply', 'BLOCK');
        waiter = withAdmission(lossy, rules(), { estimate: 600, wait: LONG_S, ...PATIENT }, async (inner) => {
          // The other call may still have its lease, because it releases it last.
          assert.deepEqual((await charged()).slice(1), [2, 700, 700]);
          inner.used = 50;
        });
        await eventually(async () => (await waiting()) === 1);
        call.used = 100;
      });
      await waiter;
      assert.deepEqual(await charged(), [0, 2, 150, 150]);
      assert.deepEqual(proxy.lost.at(-1), ['reply', 'BLOCK']);
    } finally {
      lossy.disconnect();
      await proxy.stop();
    }
  });
}

test('a call that takes longer than its ttl keeps its lease', async () => {
  const now = async () => Number((await redis.time())[0]);
  const start = await now();
  await withAdmission(redis, rules({ ttl: 2 }), HURRIED, async () => {
    await eventually(async () => (await now()) > start + 6);
    assert.equal((await charged())[0], 1);
  });
  assert.equal((await charged())[0], 0);
});

test('a call whose lease is lost is aborted, and keeps its estimate', async () => {
  const lost = withAdmission(redis, rules({ ttl: 3 }), HURRIED, async (call) => {
    await redis.del(RUNNING);
    await sleep(3_600_000, undefined, { signal: call.signal }).catch(() => call.signal.throwIfAborted());
  });
  await assert.rejects(lost, LeaseLost);
  assert.deepEqual(await charged(), [0, 1, 300, 300]);
  // A request that ignores the signal and returns normally.
  const ignored = withAdmission(redis, rules({ ttl: 3 }), HURRIED, async (call) => {
    await redis.del(RUNNING);
    await eventually(() => call.signal.aborted);
    call.used = 10;
    return 'an answer';
  });
  await assert.rejects(ignored, LeaseLost);
  assert.deepEqual(await charged(), [0, 2, 310, 310]);
});

test('wrong arguments are refused', async () => {
  for (const [n, wrong] of [-1, 1.5, '7', NaN].entries()) {
    await assert.rejects(withAdmission(redis, rules(), { ...HURRIED, estimate: 100 }, async (call) => (call.used = wrong)), RangeError);
    assert.deepEqual(await charged(), [0, n + 1, 100 * (n + 1), 100 * (n + 1)]);
  }
  await assert.rejects(withAdmission(redis, rules({ ttl: '30s' }), HURRIED, broken), /ttl/);
  assert.deepEqual(await charged(), [0, 4, 400, 400]);
});

test('a server that does not answer delays neither an answer nor an error', async () => {
  const other = await startServer();
  // ioredis itself waits for the reply for as long as the server hangs.
  const patient = new Redis({ path: other.path, autoResendUnfulfilledCommands: false });
  patient.on('error', () => {});
  try {
    const answer = await withAdmission(patient, rules(), { estimate: 300 }, async (call) => {
      other.child.kill('SIGSTOP');
      call.used = 120;
      return 'an answer';
    });
    assert.equal(answer, 'an answer');
    for (const wait of [0, LONG_S]) {
      await assert.rejects(withAdmission(patient, rules(), { estimate: 300, wait, patience: 0.2 }, broken), /in time/);
    }
    // What ioredis has sent meanwhile settles all calls.
    other.child.kill('SIGCONT');
    await eventually(async () => (await charged('acme', patient)).join() === '0,1,120,120');
    await other.kill();
    for (const wait of [0, LONG_S]) {
      await assert.rejects(withAdmission(patient, rules(), { estimate: 300, wait, patience: 0.2 }, broken), /in time|max retries/);
    }
  } finally {
    patient.disconnect();
    await other.stop();
  }
});

test('in a cluster', async () => {
  const cluster = await startCluster();
  const client = new Cluster(cluster.nodes, { retryDelayOnFailover: 0, redisOptions: ONCE });
  try {
    const slot = await cluster.each[0].call('CLUSTER', 'KEYSLOT', ALL);
    await eventually(() => client.slots[slot]);
    const node = cluster.each.find(({ options }) => client.slots[slot][0] === `${options.host}:${options.port}`);
    const moved = await cluster.moved();
    let waiter;
    await withAdmission(client, rules(), { estimate: 600, wait: LONG_S, ...PATIENT }, async (call) => {
      waiter = withAdmission(client, rules(), { estimate: 600, wait: LONG_S, ...PATIENT }, async (inner) => {
        assert.deepEqual((await charged('acme', node)).slice(1), [2, 700, 700]);
        inner.used = 50;
      });
      await eventually(async () => (await info(node, 'rl_waiting_clients')) === 1);
      call.used = 100;
    });
    await waiter;
    assert.deepEqual(await charged('acme', node), [0, 2, 150, 150]);
    assert.equal(await cluster.moved(), moved);
  } finally {
    client.disconnect();
    await cluster.stop();
  }
});
