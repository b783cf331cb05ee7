// Runs the cases that the client packages of all languages share.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, describe, test } from 'node:test';
import * as rl from '../src/index.js';
import { CLIENTS } from './clients.mjs';
import { onServer, startCluster, startSentinel, startServer } from './server.mjs';

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
        assert.deepEqual(made.command('k'), command);
      }
      if (equals) assert.ok(made.equals(policyOf(equals)));
      if (differs) assert.ok(!made.equals(policyOf(differs)));
      assert.ok(made.equals(policyOf(policy)));
    });
  }

  const nobody = { sendCommand() {}, duplicate() {} };
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

const keyOf = (key) => {
  if (typeof key !== 'object' || key === null) return key;
  if (key.hex !== undefined) return Buffer.from(key.hex, 'hex');
  return key.text.repeat(key.repeat);
};

const CAMEL = { wait_ms: 'waitMs', reset_ms: 'resetMs' };
class Raised extends Error {}

function matches(actual, expected, what) {
  if (Array.isArray(expected)) {
    assert.ok(actual >= expected[0] && actual <= expected[1], `${what} is ${actual}, not from ${expected[0]} to ${expected[1]}`);
  } else {
    assert.equal(actual, expected, what);
  }
}

function check(decision, expect) {
  const { none, headers, decisions, has_id, ...fields } = expect;
  if (none) return assert.equal(decision, null);
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
      if (one.check) await assert.rejects(held.renew(), rl.LeaseLost);
      else await run(one, limits, server, { all });
    }
    if (step.used !== undefined) held.used = step.used;
    if (step.raises) throw new Raised();
  };
  switch (call) {
    case 'take': return got(await limit.take(key, cost));
    case 'take_up_to': return got(await limit.takeUpTo(key, units));
    case 'force': return got(await limit.force(key, units));
    case 'refund': return got(await limit.refund(key, units));
    case 'peek': return got(await limit.peek(key, cost));
    case 'wait': return got(await limit.wait(key, seconds, cost));
    case 'reserve': return got(await limit.reserve(key, seconds, cost));
    case 'until': return got(await limit.until(key, Date.now() / 1000 + step.until_in, cost));
    case 'protect': return got(await limit.protect(key, { cost, wait }));
    case 'settle': return got(await limit.settle(key, id, units));
    case 'release': return got(await limit.release(key, id));
    case 'renew': return got(await limit.renew(key, id));
    case 'charge': return limit.withCharge(key, step.estimate, { wait, id }, body);
    case 'hold': return limit.withLease(key, { wait, cost, id }, body);
    case 'all': return got(await all(step.rules.map(([name, one, cost]) => [limits.get(name), keyOf(one), cost]), { wait, id }));
    default: throw new Error(`the table has a call that this test does not know: ${call}`);
  }
}

/** Runs all cases with a client. `server` sends a command of the test. `between` runs in the middle. */
function cases(name, prefix, connect, server, between = async () => {}) {
  test(name, async (t) => {
    const { client, close } = await connect();
    try {
      const shared = new rl.Limits(client, { prefix, patience: 30 });
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

describe('on one server', () => {
  let server, admin;
  onServer((...started) => ([server, admin] = started));
  for (const [name, client] of Object.entries(CLIENTS)) {
    cases(name, `${name}:`, () => client.single(server.path), (words) => admin.call(...words));
  }
});

describe('in a cluster', () => {
  let cluster;
  before(async () => (cluster = await startCluster()));
  after(() => cluster?.stop());
  for (const [name, client] of Object.entries(CLIENTS)) {
    cases(name, `${name}:`, () => client.cluster(cluster.nodes), async ([command, ...words]) => {
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
      await set.failOver();
      primary = set.clients[1];
      // A charge is repeated until the replica has become the primary.
      await limits.limit('failover', new rl.Fixed('10/h')).withCharge('key', 1, {}, () => {});
      assert.match(await primary.info('replication'), /role:master/);
    };
    cases(name, `${name}:`, connect, (words) => primary.call(...words), failOver);
  }
});

/** Runs the cases in which the server gives no decision. */
function refusals(list, connect) {
  for (const step of list) {
    test(`${step.on_down}: ${step.call} ${JSON.stringify(step.expect)}`, async () => {
      const { client, close } = await connect();
      try {
        const log = [];
        const shared = new rl.Limits(client, { onDown: step.on_down, patience: 0.2, log: (message) => log.push(message) });
        const limits = new Map([['api', shared.limit('api', policyOf(table.down_policy))]]);
        await run(step, limits, () => {}, { all: (...args) => shared.all(...args) });
        assert.equal(log.length, step.on_down === 'open' && step.expect.counted === false ? 1 : 0);
      } finally {
        await close();
      }
    });
  }
}

for (const [name, client] of Object.entries(CLIENTS)) {
  describe(`without a server: ${name}`, { concurrency: true }, () => refusals(table.down, () => client.down('/nonexistent/redis.sock')));

  describe(`without the module: ${name}`, () => {
    let server;
    before(async () => (server = await startServer({ module: false })));
    after(() => server?.stop());
    refusals(table.no_module, () => client.single(server.path));
  });
}

test('the table has no part that this test does not run', () => {
  const known = ['about', 'rates', 'durations', 'policies', 'names', 'headers', 'joined_headers', 'cases', 'down', 'down_policy', 'no_module'];
  assert.deepEqual(Object.keys(table).filter((part) => !known.includes(part)), []);
  assert.ok(table.cases.length > 10);
});
