import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command, ReplyError } from 'ioredis';
import { sendInLine } from './wait.mjs';

/** A call whose reply is lost is repeated after each of these pauses. */
const PAUSES_MS = [100, 500, 2000];

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return this.name === 'RL.ALL' ? this.args.slice(1, 1 + Number(this.args[0])) : [this.args[0]];
  }
}

/** The limits of `keys` refused the call. Retry in `retryAfter` seconds; undefined means that a retry is never granted. */
export class Denied extends Error {
  constructor(keys, waitMs) {
    super(`${keys.join(', ')}: the limit is reached; retry ${waitMs < 0 ? 'never' : `in ${waitMs / 1000} s`}`);
    this.keys = keys;
    this.retryAfter = waitMs < 0 ? undefined : waitMs / 1000;
  }
}

/** A lease has lapsed, or could not be renewed until it did. Another call may have its units. */
export class LeaseLost extends Error {
  constructor(id) {
    super(`the lease ${id} is lost`);
  }
}

/**
 * A gateway to a language model: may a tenant send a call now? Several limits decide together, how many calls run at a time
 * among them, and all are charged by one RL.ALL or none is.
 *
 *     const rules = [
 *       { key: '{gateway}:acme:running', algorithm: 'LEASE', limit: 4, period: 30 },
 *       { key: '{gateway}:acme:requests', algorithm: 'GCRA', limit: 60, period: 60, cost: 1 },
 *       { key: '{gateway}:acme:tokens', algorithm: 'SLIDE', limit: 20_000, period: 60 },
 *       { key: '{gateway}:tokens', algorithm: 'SLIDE', limit: 100_000, period: 60 },
 *     ];
 *     const answer = await withAdmission(redis, rules, { estimate: 1200, wait: 90 }, async (call) => {
 *       const answer = await model.complete(prompt, { maxTokens: 1000, signal: call.signal });
 *       call.used = answer.usage.totalTokens;
 *       return answer;
 *     });
 *
 * A rule without `cost` counts tokens; a LEASE counts calls, and its period is its ttl. `redis` is a Redis or a Cluster of
 * ioredis, and may be shared: a call that has to wait gets its own connection, from wait.mjs. Set commandTimeout, because
 * ioredis may never reject a call whose connection closed, and set autoResendUnfulfilledCommands to false. In a Cluster all keys
 * need the same hash tag. Wait for longer than the longest period: the server denies a call at once if its units will not be
 * free in time by themselves, although another call may settle to less. To leave the line, abort the `signal`.
 *
 * While `request` runs, its leases are renewed at each third of the ttl. When one is lost, or `signal` is aborted,
 * `call.signal` is aborted: pass it on. When `request` ends: if it has set `call.used`, the charges of tokens become that. If it
 * has not, the estimate stays, or, if it throws, everything is given back. The keys are settled in the reverse order of the rules:
 * list the lease first, which is then released last, and the key last that most calls wait for.
 *
 * Each call has an `id`, by default a new UUID. A call whose reply is lost is repeated with the same id, and charged once. Pass
 * the id of a job if a process that restarts repeats its call. Two calls at the same time need different ids.
 */
export async function withAdmission(redis, rules, { estimate, wait, id, signal }, request) {
  const end = performance.now() + wait * 1000;
  const call = { id: id ?? randomUUID(), used: undefined, signal };
  // What each key may have charged.
  let charged = new Map(rules.map((rule) => [rule, units(rule, estimate)]));
  try {
    const costs = rules.flatMap((rule) => [rule.algorithm, ...policy(rule), 'COST', charged.get(rule)]);
    const words = [rules.length, ...rules.map(({ key }) => key), ...costs, 'ID', call.id];
    const command = (...block) => new Limiter('RL.ALL', [...words, ...block]);
    const { reply, before } = await repeated(() => {
      const left = Math.max(0.001, (end - performance.now()) / 1000);
      return sendInLine(redis, command, ([, waitMs]) => waitMs, { wait: left, signal });
    }, signal);
    const [granted, waitMs, rows] = reply;
    if (!granted) {
      // A denied call charges nothing. What an earlier call with this id has charged would stay.
      if (!before && id === undefined) charged = new Map();
      const refused = rules.filter((_, at) => !rows[at][0]);
      throw new Denied(refused.map(({ key }) => key), waitMs);
    }
    // Not the estimate, if this id was charged with another one before.
    charged = new Map(rules.map((rule, at) => [rule, rows[at][0]]));
    signal?.throwIfAborted();
    return await whileHeld(redis, rules.filter(isLease), call, request);
  } catch (error) {
    if (call.used === undefined) {
      await settleAll(redis, call.id, charged, () => 0);
      charged = new Map();
    }
    throw error;
  } finally {
    // Also if nothing changes, because the server remembers the id until then.
    await settleAll(redis, call.id, charged, (rule) => (call.used === undefined ? charged.get(rule) : units(rule, call.used)));
  }
}

const isLease = ({ algorithm }) => algorithm === 'LEASE';
const units = (rule, tokens) => rule.cost ?? (isLease(rule) ? 1 : tokens);
const policy = ({ limit, period, options = [] }) => [limit, `${Math.round(period * 1e6)}us`, ...options];

/** Makes the request, and renews the leases until it ends. */
async function whileHeld(redis, leases, call, request) {
  if (!leases.length) return request(call);
  const ttlMs = Math.min(...leases.map(({ period }) => period * 1000));
  const [stop, ended] = [new AbortController(), new AbortController()];
  const { signal } = call;
  signal?.addEventListener('abort', () => stop.abort(signal.reason), { signal: ended.signal });
  call.signal = stop.signal;

  let lapse;
  const renew = async () => {
    const lapses = performance.now() + ttlMs;
    for (const lease of leases) {
      const args = [lease.key, ...policy(lease), 'ID', call.id, 'RENEW'];
      const { reply } = await repeated(() => redis.sendCommand(new Limiter('RL.LEASE', args)));
      if (!reply[0]) throw new LeaseLost(call.id);
    }
    clearTimeout(lapse);
    if (ended.signal.aborted) return;
    lapse = setTimeout(() => stop.abort(new LeaseLost(call.id)), lapses - performance.now());
  };
  const heartbeat = async () => {
    for (;;) {
      await sleep(ttlMs / 3, undefined, { signal: ended.signal });
      await renew().catch((error) => {
        if (error instanceof LeaseLost) stop.abort(error);
        else console.warn(`the lease ${call.id} was not renewed: ${error.message}`);
      });
    }
  };
  try {
    // How long ago the server granted the leases is unknown; a lease that is renewed now lasts a ttl from now at least.
    await renew();
    heartbeat().catch(() => {});
    return await request(call);
  } finally {
    ended.abort();
    clearTimeout(lapse);
  }
}

async function settleAll(redis, id, charged, used) {
  for (const [rule, units] of [...charged].reverse()) await settle(redis, rule, id, units, used(rule));
}

/** Never throws: the request has been made, and its answer counts more than its accounting. */
async function settle(redis, rule, id, charged, used) {
  try {
    const end = isLease(rule) ? ['RL.RELEASE', [rule.key, id]] : ['RL.SETTLE', [rule.key, id, used]];
    const { reply, before } = await repeated(() => redis.sendCommand(new Limiter(...end)));
    // The id is forgotten, because the charge is past. But if the first reply was lost, that call has settled it.
    if (reply === null && used > charged && !before) {
      // Sent once: it has no id, so it would be charged twice.
      const excess = [rule.key, ...policy(rule), 'FORCE', used - charged];
      await redis.sendCommand(new Limiter(`RL.${rule.algorithm}`, excess));
    }
  } catch (error) {
    console.warn(`${rule.key}: ${charged} of ${id} were not settled to ${used}: ${error.message}`);
  }
}

/** Repeats a call that got no reply. Returns the reply, and whether the call had been made before without one. */
async function repeated(call, signal) {
  for (let attempt = 0; ; attempt++) {
    try {
      return { reply: await call(), before: attempt > 0 };
    } catch (error) {
      const answered = error instanceof ReplyError || error instanceof TypeError || error instanceof RangeError;
      if (answered || signal?.aborted || attempt === PAUSES_MS.length) throw error;
      // An abort ends the pause; then the call throws the signal's reason.
      await sleep(PAUSES_MS[attempt], undefined, { signal }).catch(() => {});
    }
  }
}
