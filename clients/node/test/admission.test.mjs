// Tests calls that several limits admit: what is charged while the body runs and after it, when replies are lost, when a lease is
// lost, and when the server does not answer.
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Fixed, InvalidCost, InvalidWait, Lease, LeaseLost, Limits, RateLimited, Unavailable } from '../dist/index.js';
import { EACH } from './clients.mjs';
import { eventually, info, inspect, onServer, startCluster, startProxy, startServer, warnings } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
// Longer than the period: a shorter wait is denied at once.
const LONG = '2h';
const NAMES = ['{gateway}-running', '{gateway}-requests', '{gateway}-tokens', '{gateway}-all'];

/** The rules of a tenant: calls at a time, requests, the tokens of the tenant, and the tokens of all tenants. */
function rulesOf(limits, { tenant = 'acme', ttl = '1h', all = 2000 } = {}) {
  const [running, requests, tokens, ofAll] = NAMES;
  return [
    [limits.limit(running, new Lease(2, ttl)), tenant],
    [limits.limit(requests, new Fixed('100/h')), tenant, 1],
    [limits.limit(tokens, new Fixed('1000/h')), tenant],
    [limits.limit(ofAll, new Fixed(`${all}/h`)), 'all'],
  ];
}

/** The calls that run, the requests, the tenant's tokens, and those of all tenants. */
async function chargedOn(node, tenant = 'acme') {
  const facts = await Promise.all(NAMES.map((name, at) => inspect(node, `${name}:${at < 3 ? tenant : 'all'}`)));
  return facts.map((each) => each?.held ?? each?.used ?? 0);
}
const waitingOn = (node) => info(node, 'rl_waiting_clients');
const broken = async () => {
  throw new Error('the model is down');
};

/** Runs `use` with limits of a client. */
async function withLimits(single, path, use, options = {}) {
  const { client, close } = await single(path);
  const limits = new Limits(client, { ...PATIENT, ...options });
  try {
    await use(limits, client);
    await limits.close();
  } finally {
    await close();
  }
}

// At the same time, each on a server of its own.
describe('on one server', { concurrency: EACH.length }, () => EACH.forEach(([name, { single }]) => {
  describe(name, { concurrency: 1 }, () => {
    let server, admin;
    onServer((...started) => ([server, admin] = started));
    beforeEach(() => admin.flushall());
    const charged = (tenant) => chargedOn(admin, tenant);
    const waiting = () => waitingOn(admin);
    const on = (use, options) => withLimits(single, server.path, use, options);

    test('rules without a cost become what was used; the lease is released, and costs stay', () =>
      on(async (limits) => {
        const rules = rulesOf(limits);
        let total = 0;
        for (const [n, [spent, left]] of [[120, 120], [450, 450], [0, 0], [undefined, 300]].entries()) {
          const answer = await limits.admit(rules, { estimate: 300 }, async (call) => {
            assert.deepEqual(await charged(), [1, n + 1, total + 300, total + 300]);
            assert.deepEqual(call.decision.decisions.map(({ granted }) => granted), [1, 1, 300, 300]);
            // As a stream does: the last one counts.
            if (spent !== undefined) call.used = 1;
            call.used = spent;
            return 'an answer';
          });
          total += left;
          assert.deepEqual([answer, await charged()], ['an answer', [0, n + 1, total, total]]);
        }
        // More than the estimate, and more than the limit.
        await limits.admit(rules, { estimate: 100 }, (call) => (call.used = 500));
        assert.deepEqual(await charged(), [0, 5, 1370, 1370]);
        for (const name of NAMES.slice(1)) {
          assert.equal((await inspect(admin, `${name}:${name === NAMES[3] ? 'all' : 'acme'}`)).ids, 0);
        }
      }));

    test('a body that throws: what it used stays; if it does not say, the estimates are given back, and costs stay', () =>
      on(async (limits) => {
        const rules = rulesOf(limits);
        await assert.rejects(limits.admit(rules, { estimate: 100 }, broken), /the model is down/);
        assert.deepEqual(await charged(), [0, 1, 0, 0]);
        await assert.rejects(limits.admit(rules, { estimate: 100 }, async (call) => {
          call.used = 30;
          await broken();
        }), /the model is down/);
        assert.deepEqual(await charged(), [0, 2, 30, 30]);
        // A body that takes its word back.
        await assert.rejects(limits.admit(rules, { estimate: 100 }, async (call) => {
          call.used = 30;
          call.used = undefined;
          await broken();
        }), /the model is down/);
        assert.deepEqual(await charged(), [0, 3, 30, 30]);
      }));

    test('a denied call charges nothing, and names the limits', () =>
      on(async (limits) => {
        const rules = rulesOf(limits);
        const admit = (options) => limits.admit(rules, options, () => assert.fail('it was admitted'));
        await limits.admit(rules, { estimate: 700 }, async () => {
          await assert.rejects(admit({ estimate: 301, wait: 0.001 }), (error) => {
            assert.ok(error instanceof RateLimited && error.retryAfter > 3500, error);
            assert.deepEqual(error.problem()['violated-policies'], [NAMES[2]]);
            assert.match(error.headers()['Retry-After'], /^3[56]\d\d$/);
            assert.equal(error.headers()['RateLimit-Policy'].split(', ').length, 4);
            return true;
          });
          await assert.rejects(admit({ estimate: 2001, wait: LONG }), (error) => {
            return error.problem()['violated-policies'].join() === `${NAMES[2]},${NAMES[3]}` && error.retryAfter === null;
          });
          for (const wrong of [{}, { estimate: 0 }, { estimate: 1.5 }]) await assert.rejects(admit(wrong), InvalidCost);
          for (const wait of [0 / 0, 86_401, -1]) await assert.rejects(admit({ estimate: 1, wait }), InvalidWait);
          assert.deepEqual(await charged(), [1, 1, 700, 700]);
        });
        for (const [n, wrong] of [-1, 1.5, '7', NaN].entries()) {
          await assert.rejects(limits.admit(rules, { estimate: 100 }, async (call) => (call.used = wrong)), InvalidCost);
          assert.deepEqual(await charged(), [0, 2 + n, 700, 700]);
        }
        // Without rules of an estimate, none is needed.
        await limits.admit(rules.slice(0, 2), {}, async () => assert.deepEqual(await charged(), [1, 6, 700, 700]));
        assert.deepEqual(await charged(), [0, 6, 700, 700]);
      }));

    test('an id of the program: a repeated call is charged once', () =>
      on(async (limits) => {
        const rules = rulesOf(limits);
        await limits.admit(rules, { estimate: 300, id: 'job-7' }, async (call) => {
          assert.equal(call.id, 'job-7');
          // As a process that was restarted: with another estimate, the first charge stands.
          await limits.admit(rules, { estimate: 200, id: 'job-7' }, async ({ decision }) => {
            assert.deepEqual(decision.decisions.map(({ granted }) => granted), [1, 1, 300, 300]);
          });
        });
        assert.deepEqual(await charged(), [0, 1, 300, 300]);
      }));

    test('thirty calls of three tenants share what all have', () =>
      on(async (limits) => {
        const seen = [];
        const tenants = ['ada', 'bob', 'eve'];
        const waited = await info(admin, 'rl_waits');
        const work = (n, tenant) =>
          limits.admit(rulesOf(limits, { tenant, all: 1000 }), { estimate: 250, wait: LONG }, async (call) => {
            seen.push(await charged(tenant));
            await sleep(5);
            if (n % 3 === 0) await broken();
            call.used = n;
          });
        const numbers = Array.from({ length: 10 }, (_, n) => n);
        const calls = numbers.flatMap((n) => tenants.map((tenant) => [n, work(n, tenant)]));
        const results = await Promise.allSettled(calls.map(([, call]) => call));
        assert.deepEqual(results.map(({ status }) => status), calls.map(([n]) => (n % 3 ? 'fulfilled' : 'rejected')));
        assert.equal(seen.length, 30);
        assert.ok(seen.every(([held, , , ofAll]) => held <= 2 && ofAll <= 1000));
        const sum = numbers.filter((n) => n % 3).reduce((one, other) => one + other);
        for (const tenant of tenants) assert.deepEqual(await charged(tenant), [0, 10, sum, 3 * sum]);
        assert.ok((await info(admin, 'rl_waits')) > waited);
        assert.equal(await waiting(), 0);
      }));

    test('a call that waits for its lease delays no other tenant, and leaves the line when it is aborted', () =>
      on(async (limits) => {
        const control = new AbortController();
        let finish;
        const done = new Promise((resolve) => (finish = resolve));
        const running = [1, 2].map(() => limits.admit(rulesOf(limits), { estimate: 100 }, () => done));
        await eventually(async () => (await charged())[0] === 2);
        const waits = { estimate: 100, wait: LONG, signal: control.signal };
        const left = assert.rejects(limits.admit(rulesOf(limits), waits, broken), { name: 'AbortError' });
        await eventually(async () => (await waiting()) === 1);
        await limits.admit(rulesOf(limits, { tenant: 'bob' }), { estimate: 100 }, async () => {
          assert.deepEqual(await charged(), [2, 2, 200, 300]);
        });
        control.abort();
        await left;
        await eventually(async () => (await waiting()) === 0);
        finish();
        await Promise.all(running);
        await limits.close();
        assert.deepEqual(await charged(), [0, 2, 200, 300]);
      }));

    test('an abort while the body runs: its signal is aborted, and the estimates are given back', () =>
      on(async (limits) => {
        const control = new AbortController();
        await assert.rejects(limits.admit(rulesOf(limits), { estimate: 100, signal: control.signal }, async (call) => {
          control.abort(new Error('the caller has gone'));
          call.signal.throwIfAborted();
        }), /the caller has gone/);
        assert.deepEqual(await charged(), [0, 1, 0, 0]);
        const aborted = { estimate: 100, signal: AbortSignal.abort(new Error('before')) };
        await assert.rejects(limits.admit(rulesOf(limits), aborted, broken), /before/);
        assert.deepEqual(await charged(), [0, 1, 0, 0]);
      }));

    for (const what of ['request', 'reply']) {
      test(`a lost ${what} charges once and settles once`, async () => {
        const proxy = await startProxy(server);
        try {
          await withLimits(single, proxy.path, async (lossy) => {
            const losses = ['RL.ALL', 'RENEW', 'RL.SETTLE', 'RL.RELEASE'].map((command) => [what, command]);
            let total = 0;
            for (const [n, spent] of [120, 450].entries()) {
              for (const loss of losses) proxy.lose(...loss);
              await lossy.admit(rulesOf(lossy, { ttl: 6 }), { estimate: 300 }, async (call) => {
                assert.deepEqual(await charged(), [1, n + 1, total + 300, total + 300]);
                await eventually(() => proxy.lost.some(([, command]) => command === 'RENEW'));
                call.used = spent;
              });
              total += spent;
              assert.deepEqual(await charged(), [0, n + 1, total, total]);
              assert.deepEqual(proxy.lost.splice(0), losses);
            }

            // A call in line is granted by the server when this block ends; then its reply is lost.
            await admin.flushall();
            const hour = { estimate: 600, wait: LONG };
            await on(async (limits) => {
              let waiter;
              await limits.admit(rulesOf(limits), hour, async (call) => {
                proxy.lose('reply', 'BLOCK');
                waiter = lossy.admit(rulesOf(lossy), hour, async (inner) => {
                  // The other call may still have its lease, because it releases it last.
                  assert.deepEqual((await charged()).slice(1), [2, 700, 700]);
                  inner.used = 50;
                });
                await eventually(async () => (await waiting()) === 1);
                call.used = 100;
              });
              await waiter;
            });
            assert.deepEqual(await charged(), [0, 2, 150, 150]);
            assert.deepEqual(proxy.lost, [['reply', 'BLOCK']]);
          });
        } finally {
          await proxy.stop();
        }
      });
    }

    test('a call that takes longer than its ttl keeps its lease; a call whose lease is lost is aborted', () =>
      on(async (limits) => {
        const now = async () => Number((await admin.time())[0]);
        const start = await now();
        const kept = limits.admit(rulesOf(limits, { tenant: 'kept', ttl: 4, all: 3000 }), { estimate: 300 }, async () => {
          await eventually(async () => (await now()) > start + 9);
          assert.equal((await charged('kept'))[0], 1);
        });
        const rules = rulesOf(limits, { ttl: 3, all: 3000 });
        const lost = limits.admit(rules, { estimate: 300 }, async (call) => {
          await admin.del(`${NAMES[0]}:acme`);
          await sleep(3_600_000, undefined, { signal: call.signal }).catch(() => call.signal.throwIfAborted());
        });
        await assert.rejects(lost, LeaseLost);
        assert.deepEqual((await charged()).slice(0, 3), [0, 1, 0]);
        // A body that ignores the signal and returns normally.
        const ignored = limits.admit(rules, { estimate: 300 }, async (call) => {
          await admin.del(`${NAMES[0]}:acme`);
          await eventually(() => call.signal.aborted);
          assert.ok(call.signal.reason instanceof LeaseLost);
          assert.throws(() => call.check(), LeaseLost);
          call.used = 10;
          return 'an answer';
        });
        await assert.rejects(ignored, LeaseLost);
        assert.deepEqual((await charged()).slice(0, 3), [0, 2, 10]);
        await kept;
        assert.equal((await charged('kept'))[0], 0);
      }));

    test('a server that does not answer delays neither an answer nor an error', async () => {
      const other = await startServer();
      const direct = new Redis({ path: other.path });
      direct.on('error', () => {});
      const said = warnings();
      try {
        await withLimits(single, other.path, async (limits, client) => {
          const answer = await limits.admit(rulesOf(limits), { estimate: 300 }, async (call) => {
            other.child.kill('SIGSTOP');
            call.used = 120;
            return 'an answer';
          });
          assert.equal(answer, 'an answer');
          assert.ok((await said.stop()).some((line) => /was not released|were not settled/.test(line)));
          const hurried = new Limits(client);
          for (const wait of [0, LONG]) {
            await assert.rejects(hurried.admit(rulesOf(hurried), { estimate: 300, wait }, broken), Unavailable);
          }
          // What the package has sent meanwhile settles all calls.
          other.child.kill('SIGCONT');
          await eventually(async () => (await chargedOn(direct)).join() === '0,1,120,120');
          await hurried.close();
          await other.kill();
          const [closed, open] = ['closed', 'open'].map((onDown) => new Limits(client, { onDown }));
          for (const wait of [0, LONG]) {
            await assert.rejects(closed.admit(rulesOf(closed), { estimate: 300, wait }, broken), Unavailable);
          }
          const sources = await open.admit(rulesOf(open), { estimate: 300 }, ({ decisions }) => decisions.map(({ source }) => source));
          assert.deepEqual(sources, ['down', 'down', 'down', 'down']);
          for (const one of [closed, open]) await one.close();
        }, { timeout: 3 });
      } finally {
        direct.disconnect();
        await other.stop();
      }
    });
  });
}));

test('in a cluster', async () => {
  const cluster = await startCluster();
  try {
    for (const [, { cluster: connect }] of EACH) {
      await Promise.all(cluster.each.map((node) => node.flushall()));
      const { client, close } = await connect(cluster.nodes);
      try {
        const moved = await cluster.moved();
        const limits = new Limits(client, { ...PATIENT });
        let waiter;
        const hour = { estimate: 600, wait: LONG };
        const node = await cluster.nodeOf(NAMES[0]);
        await limits.admit(rulesOf(limits), hour, async (call) => {
          waiter = limits.admit(rulesOf(limits), hour, async (inner) => {
            assert.deepEqual((await chargedOn(node)).slice(1), [2, 700, 700]);
            inner.used = 50;
          });
          await eventually(async () => (await waitingOn(node)) === 1);
          call.used = 100;
        });
        await waiter;
        assert.deepEqual(await chargedOn(node), [0, 2, 150, 150]);
        assert.equal(await cluster.moved(), moved);
      } finally {
        await close();
      }
    }
  } finally {
    await cluster.stop();
  }
});
