// Runs the cases that the client packages of all languages share.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import { AxiosHeaders } from 'axios';
import * as rl from '../dist/index.js';
import { askedSeconds } from '../dist/responses.js';
import { CLIENTS } from './clients.mjs';
import { eventually, onServer, startCluster, startSentinel, startServer, warnings } from './server.mjs';

/** Longer than any command takes on a busy machine, and than a failover. */
const PATIENT = { timeout: 20, connectTimeout: 40 };
const table = JSON.parse(await readFile(new URL('../../behaviour.json', import.meta.url), 'utf8'));

/** Makes a policy of the table. */
function policyOf({ type, ...args }) {
  if (type === 'lease') return new rl.Lease(args.limit, args.ttl);
  const Class = { fixed: rl.Fixed, slide: rl.Slide, gcra: rl.Gcra, bucket: rl.Bucket }[type];
  const { rate, ...options } = args;
  return new Class(rate, options);
}

const fails = (run, name) => assert.throws(run, (error) => error instanceof rl[name] && error instanceof rl.InvalidArgument);

describe('without a server', () => {
  for (const { rate, error, limit, period_us, text } of table.rates) {
    test(`the rate ${JSON.stringify(rate)}`, () => {
      if (error) return fails(() => new rl.Fixed(rate), error);
      const policy = new rl.Fixed(rate);
      assert.deepEqual([policy.limit, Number(policy.period.us), policy.rate], [limit, period_us, text]);
      assert.ok(policy.toString().includes(text));
    });
  }

  for (const { duration, error, us, text } of table.durations) {
    test(`the duration ${JSON.stringify(duration)}`, () => {
      if (error) return fails(() => new rl.Lease(1, duration), error);
      const { ttl } = new rl.Lease(1, duration);
      assert.deepEqual([Number(ttl.us), ttl.text], [us, text]);
    });
  }

  for (const { policy, error, capacity, command, equals, differs } of table.policies) {
    test(`the policy ${JSON.stringify(policy)}`, () => {
      if (error) return fails(() => policyOf(policy), error);
      const made = policyOf(policy);
      if (command) {
        assert.equal(made.capacity, capacity);
        assert.deepEqual([`RL.${made.algorithm}`, 'k', ...made.words()], command);
      }
      for (const same of [equals, policy]) if (same) assert.equal(String(policyOf(same)), String(made));
      if (differs) assert.notEqual(String(policyOf(differs)), String(made));
    });
  }

  for (const { zone, period, now, starts, ends, command, headers } of table.calendar) {
    test(`the calendar: ${zone}, ${period}, ${now}`, () => {
      const policy = new rl.Fixed(`5/${period}`, { zone });
      const ms = now * 1000;
      assert.deepEqual(['RL.FIXED', 'k', ...policy.words(ms)], command);
      assert.equal(policy.window(ms), ends - starts);
      assert.equal(new rl.Decision('api', policy, [1, 5, 4, 0, 1000], 'server', ms).headers()['RateLimit-Policy'], headers['RateLimit-Policy']);
      // The same for the first and the last second of the window, in any order.
      for (const second of [starts, ends - 1, starts]) assert.deepEqual(['RL.FIXED', 'k', ...policy.words(second * 1000)], command);
    });
  }

  for (const { address, key } of table.addresses) {
    test(`the key of the address ${address}`, () => assert.equal(rl.addressKey(address), key));
  }

  const nobody = () => assert.fail('a client was made');
  for (const { name, prefix, key, on_the_server, error } of table.names) {
    test(`the name ${JSON.stringify(name)}`, () => {
      const limits = new rl.Limits(nobody, { prefix });
      if (error) return fails(() => limits.limit(name, new rl.Gcra('1/s')), error);
      assert.equal(limits.limit(name, new rl.Gcra('1/s')).keyOf(key), on_the_server);
    });
  }

  const decisionOf = ({ name, policy, reply }) => new rl.Decision(name, policyOf(policy), reply);
  for (const { about, headers, ...decision } of table.headers) {
    test(`headers: ${about}`, () => assert.deepEqual(decisionOf(decision).headers(), headers));
  }
  for (const { about, decisions, headers } of table.joined_headers) {
    test(`several headers: ${about}`, () => assert.deepEqual(rl.headers(decisions.map(decisionOf)), headers));
  }
});

/** A response of each library. */
const RESPONSES = {
  fetch: (status, headers) => new Response(null, { status, headers }),
  axios: (status, headers) => ({ status, headers: new AxiosHeaders(headers) }),
  'node:http': (statusCode, headers) => ({ statusCode, headers }),
};
for (const [library, make] of Object.entries(RESPONSES)) {
  for (const { about, status, headers, now, seconds } of table.responses) {
    test(`a response of ${library}: ${about}`, () => {
      const asked = askedSeconds(make(status, headers), now);
      if (seconds === 'most') assert.ok(asked >= 31 * 86_400);
      else assert.ok(Math.abs(asked - seconds) < 0.001, `${asked}`);
    });
  }
}
test('no header throws an error', () => {
  const words = ['"', '\\', ',', ';', '=', ' ', 'r=0', 't=', '9'.repeat(30), 'Mon, ', '31 Feb 2026', ' 00:00:00 ', 'GMT', '-', ':', 'Invalid Date', '__proto__', '\0', 'é'];
  for (let n = 0; n < 5000; n++) {
    const text = () => Array.from({ length: n % 9 }, () => words[Math.floor(Math.random() * words.length)]).join('');
    const headers = { 'Retry-After': text(), RateLimit: text(), 'X-RateLimit-Reset': text(), 'X-RateLimit-Remaining': text() };
    assert.ok(askedSeconds({ status: 429, headers }, 1_790_000_000) >= 0, JSON.stringify(headers));
  }
});

const keyOf = (key) => {
  if (typeof key !== 'object' || key === null) return key;
  if (key.hex !== undefined) return Buffer.from(key.hex, 'hex');
  return key.text.repeat(key.repeat);
};

const CAMEL = { wait_ms: 'waitMs', reset_ms: 'resetMs' };
class Raised extends Error {}
const throws = (call, Class) => {
  try {
    return call() && false;
  } catch (error) {
    return error instanceof Class;
  }
};

function matches(actual, expected, what) {
  if (Array.isArray(expected)) {
    assert.ok(actual >= expected[0] && actual <= expected[1], `${what} is ${actual}, not from ${expected[0]} to ${expected[1]}`);
  } else {
    assert.equal(actual, expected, what);
  }
}

function check(decision, expect) {
  const { none, seconds, headers, decisions, has_id, ...fields } = expect;
  if (none) return assert.equal(decision, null);
  if (seconds !== undefined) return matches(decision, seconds, 'the pause');
  for (const [name, value] of Object.entries(fields)) matches(decision[CAMEL[name] ?? name], value, name);
  if (headers) assert.deepEqual(decision.headers(), headers);
  decisions?.forEach((one, at) => check(decision.decisions[at], one));
  if (has_id) assert.ok(decision.id.length > 0);
}

/** Runs a step. `limits` has the limits of the case by name, `server` sends a command. */
async function run(step, limits, server, { all }) {
  if (step.server) {
    const reply = await server(step.server);
    if (step.reply !== undefined) [step.reply].flat(1).forEach((one, at) => matches([reply].flat(1)[at], one, step.server.join(' ')));
    return;
  }
  const { expect } = step;
  if (!expect.error && !step.raises) return perform(step, limits, server, all, (decision) => check(decision, expect));
  const name = expect.error;
  let checked = false;
  await assert.rejects(perform(step, limits, server, all, (decision) => {
    checked = true;
    if (!name) check(decision, expect);
  }), (error) => {
    if (!name) return error instanceof Raised && checked;
    if (!(error instanceof rl[name])) throw error;
    if (expect.retry_after !== undefined) matches(error.retryAfter, expect.retry_after, 'retry_after');
    return true;
  });
}

/** Makes the call of a step, and passes its decision to `got`. */
async function perform(step, limits, server, all, got) {
  const { call, cost, units, seconds, wait } = step;
  const id = step.id === undefined ? undefined : keyOf(step.id);
  const key = keyOf(step.key);
  const limit = step.limit ? limits.get(step.limit) : [...limits.values()][0];
  /** The body of a charge or a lease. */
  const body = async (held) => {
    got(held.decision);
    for (const one of step.inside ?? []) {
      if (one.check) await eventually(() => throws(() => held.check(), rl.LeaseLost));
      else await run(one, limits, server, { all });
    }
    if (step.used !== undefined) held.used = step.used;
    if (step.raises) throw new Raised();
  };
  switch (call) {
    case 'take': return got(await limit.take(key, cost, { id }));
    case 'take_up_to': return got(await limit.takeUpTo(key, units));
    case 'force': return got(await limit.force(key, units));
    case 'refund': return got(await limit.refund(key, units));
    case 'peek': return got(await limit.peek(key, cost));
    case 'wait': return got(await limit.wait(key, seconds, cost));
    case 'reserve': return got(await limit.reserve(key, seconds, cost));
    case 'until': return got(await limit.until(key, Date.now() / 1000 + step.until_in, cost));
    case 'admit': return limit.admit(key, { cost, wait }, body);
    case 'pause': return got(await limit.pause(key, seconds));
    case 'resume': return got((await limit.resume(key)) ?? null);
    case 'observe': {
      const { status, headers } = step.response;
      return got(await limit.observe(key, RESPONSES.fetch(status, headers), { maxPause: step.max_pause }));
    }
    case 'settle': return got(await limit.settle(key, id, units));
    case 'release': return got(await limit.release(key, id));
    case 'renew': return got(await limit.renew(key, id));
    case 'charge': return limit.charge(key, step.estimate, { wait, id }, body);
    case 'hold': return limit.hold(key, { wait, units: cost, id }, body);
    case 'all': return got(await all(step.rules.map(([name, one, cost]) => [limits.get(name), keyOf(one), cost]), { wait, id }));
    default: throw new Error(`the table has a call that this test does not know: ${call}`);
  }
}

/** Runs all cases with a client. `server` sends a command of the test. `between` runs in the middle. */
function cases(name, prefix, connect, server, between = async () => {}) {
  test(name, async (t) => {
    const { client, close } = await connect();
    try {
      const shared = new rl.Limits(client, { prefix, ...PATIENT });
      for (const [at, { name, limits, steps }] of table.cases.entries()) {
        if (at === Math.floor(table.cases.length / 2)) await between(shared);
        await t.test(name, async () => {
          const tagged = (text) => (typeof text === 'string' ? text.replace('{c}', `{${prefix}${at}}`) : text);
          const made = new Map(Object.entries(limits).map(([name, policy]) => {
            return [name, shared.limit(tagged(name), policyOf(policy))];
          }));
          const translate = (value) => {
            if (typeof value === 'string') return tagged(value);
            if (Array.isArray(value)) return value.map(translate);
            if (!value || typeof value !== 'object') return value;
            return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, translate(one)]));
          };
          // The names of limits stay, because they are looked up; what the server sees has the tag of this case.
          const forServer = (step) => ({
            ...step,
            ...(step.server && { server: step.server.map((word) => (word.startsWith('{c}') ? prefix + tagged(word) : word)) }),
            ...(step.expect?.headers && { expect: { ...step.expect, headers: translate(step.expect.headers) } }),
            ...(step.inside && { inside: step.inside.map(forServer) }),
          });
          for (const step of steps) await run(forServer(step), made, server, { all: (...args) => shared.all(...args) });
        });
      }
      await shared.close();
    } finally {
      await close();
    }
  });
}

// They mostly wait, above all for the end of a lease.
describe('on one server', { concurrency: 8 }, () => {
  let server, admin;
  onServer((...started) => ([server, admin] = started));
  for (const [name, client] of Object.entries(CLIENTS)) {
    cases(name, `${name}-`, () => client.single(server.path), (words) => admin.call(...words));
  }
});

describe('in a cluster', { concurrency: 8 }, () => {
  let cluster;
  before(async () => (cluster = await startCluster()));
  after(() => cluster?.stop());
  for (const [name, client] of Object.entries(CLIENTS)) {
    cases(name, `${name}-`, () => client.cluster(cluster.nodes), async ([command, ...words]) => {
      // The node that has the key executes it, and the others redirect it.
      for (const node of cluster.each) {
        try {
          return await node.call(command, ...words);
        } catch (error) {
          if (!error.message.startsWith('MOVED')) throw error;
        }
      }
      throw new Error('no node has the key');
    });
  }
});

describe('behind a sentinel, with a failover in the middle', { concurrency: 3 }, () => {
  for (const [name, client] of Object.entries(CLIENTS)) {
    if (!client.sentinel) continue;
    let set, primary;
    const connect = async () => {
      set = await startSentinel();
      [primary] = set.clients;
      try {
        const { client: redis, close } = await client.sentinel(set);
        const closeBoth = async () => {
          try {
            await close();
          } finally {
            await set.stop();
          }
        };
        return { client: redis, close: closeBoth };
      } catch (error) {
        await set.stop();
        throw error;
      }
    };
    const failOver = async (limits) => {
      // A call that is under way is repeated until the replica has become the primary.
      const limit = limits.limit('failover', new rl.Fixed('10/h'));
      await limit.charge('key', 1, {}, async () => {
        await set.clients[0].client('PAUSE', 60_000, 'WRITE');
        const call = limit.take('key', 1, { id: 'kept' });
        await eventually(async () => / flags=\w*b/.test(await set.clients[0].client('LIST')));
        await set.failOver();
        primary = set.clients[1];
        assert.equal((await call).granted, 1);
      });
      assert.match(await primary.info('replication'), /role:master/);
    };
    cases(name, `${name}-`, connect, (words) => primary.call(...words), failOver);
  }
});

/** Runs the cases in which the server gives no decision. */
function refusals(list, connect, options) {
  test('the cases', async () => {
    const { client, close } = await connect();
    try {
      for (const step of list) {
        const said = warnings();
        const shared = new rl.Limits(client, { onDown: step.on_down, ...options });
        const limits = new Map([['api', shared.limit('api', policyOf(table.down_policy))]]);
        const what = `${step.on_down}: ${step.call} ${JSON.stringify(step.expect)}`;
        await run(step, limits, () => {}, { all: (...args) => shared.all(...args) }).catch((error) => {
          throw new Error(`${what}: ${error.message}`, { cause: error });
        });
        const asked = !['InvalidCost', 'InvalidKey', 'InvalidWait'].includes(step.expect.error);
        assert.equal((await said.stop()).length, asked ? 1 : 0, what);
        assert.equal(shared.letThrough, step.expect.source === 'down' && step.expect.granted ? 1 : 0, what);
        await shared.close();
      }
    } finally {
      await close();
    }
  });
}

for (const [name, client] of Object.entries(CLIENTS)) {
  describe(`without a server: ${name}`, () => {
    refusals(table.down, () => client.down('/nonexistent/redis.sock'));

    test('with a limiter in the process', async () => {
      const { client: redis, close } = await client.down('/nonexistent/redis.sock');
      try {
        const shared = new rl.Limits(redis, { onDown: policyOf(table.local_policy) });
        const limits = new Map([['api', shared.limit('api', policyOf(table.down_policy))]]);
        for (const step of table.local) await run(step, limits, () => {}, { all: (...args) => shared.all(...args) });
        assert.equal(shared.letThrough, table.local.filter(({ expect }) => expect.granted).length);
        await shared.close();
      } finally {
        await close();
      }
    });
  });

  describe(`without the module: ${name}`, () => {
    let server;
    before(async () => (server = await startServer({ module: false })));
    after(() => server?.stop());
    refusals(table.no_module, () => client.single(server.path), PATIENT);
  });
}

test('the table has no part that this test does not run', () => {
  const known = [
    'about', 'rates', 'durations', 'policies', 'calendar', 'addresses', 'names', 'headers', 'joined_headers', 'responses', 'cases', 'down', 'down_policy', 'no_module',
    'local', 'local_policy',
  ];
  assert.deepEqual(Object.keys(table).filter((part) => !known.includes(part)), []);
  assert.ok(table.cases.length > 10);
});
