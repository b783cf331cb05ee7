import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command, ReplyError } from 'ioredis';
import { sendInLine, within } from './wait.mjs';

/** A command whose reply is lost is repeated after this pause. */
const PAUSE_MS = 100;
/** The longest that a timer of Node.js can wait. */
const LONGEST_MS = 2 ** 31 - 1;

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

/** The argument of `request`. */
class Call {
  #used;
  // True if the model may have got the request. If not, everything is given back.
  #sent = false;

  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
  }

  /** The tokens that the call has used: a whole number from 0, or undefined if the program does not know. */
  get used() {
    return this.#used;
  }

  set used(tokens) {
    const known = tokens !== undefined && tokens !== null;
    const valid = Number.isSafeInteger(tokens) && tokens >= 0;
    if (known && !valid) throw new RangeError(`used is a whole number from 0, not ${tokens}`);
    [this.#used, this.#sent] = [known ? tokens : undefined, true];
  }

  /** Says that the model has not got the request: everything is given back. */
  unused() {
    [this.#used, this.#sent] = [undefined, false];
  }

  /** What the charge of a rule becomes. */
  final(rule, charged) {
    if (!this.#sent) return 0;
    return this.#used === undefined ? charged : units(rule, this.#used);
  }
}

/**
 * A gateway to a language model. It decides whether a tenant may send a call now. Several limits decide together, and one of
 * them counts the calls that run at a time. One RL.ALL charges all limits or none.
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
 * ioredis may never reject a call whose connection closed, and set autoResendUnfulfilledCommands to false. In a Cluster all
 * keys need the same hash tag. `wait` is 0 if it is omitted. Let it be longer than the longest period: the server denies a
 * call at once if its units will not be free in time by themselves, although another call may settle to less. To leave the
 * line, abort the `signal`.
 *
 * While `request` runs, its leases are renewed at each third of the ttl. When one is lost, or `signal` is aborted,
 * `call.signal` is aborted: pass it on to the model's client. Then withAdmission throws the signal's reason, also if `request`
 * returns normally.
 *
 * When `request` ends, withAdmission settles the charges. It does the same if `request` throws. If it has set `call.used`, the
 * charges of tokens become that; a program that streams sets it again with each chunk. If not, the estimate stays charged,
 * because the model may have done the work. If it has called `call.unused()`, everything is given back. Call that only if the
 * model has not got the request, for example because the connection failed. If each exception gave the units back, a client
 * that disconnects in time would avoid all limits. The keys are settled in the reverse order of the rules: list the lease
 * first, which is then released last, and list the key last that most calls wait for.
 *
 * If Redis does not answer, an admission besides its wait and a settlement each take about `patience` seconds at most.
 *
 * Each call has an `id`, by default a new UUID. A call whose reply is lost is repeated with the same id, and charged once.
 * Pass the id of a job if a process that restarts repeats its call. Two calls at the same time need different ids.
 */
export async function withAdmission(redis, rules, { estimate, wait = 0, id, signal, patience = 1 }, request) {
  if (!(wait >= 0 && wait <= 86_400)) throw new RangeError(`wait is a number of seconds from 0 to 86400, not ${wait}`);
  const end = performance.now() + wait * 1000;
  const patienceMs = patience * 1000;
  const call = new Call(id ?? randomUUID(), signal);
  // The units that each key may have charged.
  let charged = new Map(rules.map((rule) => [rule, units(rule, estimate)]));
  try {
    const costs = rules.flatMap((rule) => [rule.algorithm, ...policy(rule), 'COST', charged.get(rule)]);
    const words = [rules.length, ...rules.map(({ key }) => key), ...costs, 'ID', call.id];
    // The time at which the call has joined the line.
    let joined;
    const command = (...block) => {
      joined = block.length ? performance.now() : undefined;
      return new Limiter('RL.ALL', [...words, ...block]);
    };
    const ask = (deadline) => {
      const [left, patienceMs] = [end - performance.now(), deadline - performance.now()];
      if (left <= 0) return within(patienceMs, redis.sendCommand(command()));
      return sendInLine(redis, command, ([, waitMs]) => waitMs, { wait: left / 1000, signal, patienceMs });
    };
    // The time in line does not count for the deadline.
    const inLine = () => (joined ? performance.now() - joined : 0);
    const { reply, before } = await repeated(ask, performance.now() + patienceMs, signal, inLine);
    const [granted, waitMs, rows] = reply;
    if (!granted) {
      // A denied call charges nothing. What an earlier call with this id has charged would stay.
      if (!before && id === undefined) charged = new Map();
      const refused = rules.filter((_, at) => !rows[at][0]);
      throw new Denied(refused.map(({ key }) => key), waitMs);
    }
    // If this id was charged with another estimate before, the server reports the units of that charge.
    charged = new Map(rules.map((rule, at) => [rule, rows[at][0]]));
    signal?.throwIfAborted();
    return await whileHeld(redis, rules.filter(isLease), call, patienceMs, request);
  } finally {
    // This is done even if no charge changes, because a key remembers the id until it is settled or released.
    await settleAll(redis, call, charged, performance.now() + patienceMs);
  }
}

const isLease = ({ algorithm }) => algorithm === 'LEASE';
const units = (rule, tokens) => rule.cost ?? (isLease(rule) ? 1 : tokens);
const policy = ({ limit, period, options = [] }) => [limit, `${Math.round(period * 1e6)}us`, ...options];

/** Makes the request, and renews the leases until it ends. */
async function whileHeld(redis, leases, call, patienceMs, request) {
  const start = () => {
    // From now on, the model may have got the request: the estimate stays charged.
    call.used = undefined;
    return request(call);
  };
  if (!leases.length) return start();
  const ttlMs = Math.min(LONGEST_MS, ...leases.map(({ period }) => period * 1000));
  const [stop, ended] = [new AbortController(), new AbortController()];
  const { signal } = call;
  signal?.addEventListener('abort', () => stop.abort(signal.reason), { signal: ended.signal });
  call.signal = stop.signal;

  let lapse;
  const renew = async () => {
    const lapses = performance.now() + ttlMs;
    // The deadline is before the next renewal begins.
    const deadline = performance.now() + Math.min(patienceMs, ttlMs / 4);
    for (const lease of leases) {
      const args = [lease.key, ...policy(lease), 'ID', call.id, 'RENEW'];
      const { reply } = await send(redis, 'RL.LEASE', args, deadline);
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
    // The program does not know when the server granted the leases. A lease that is renewed now lasts for a ttl from now.
    await renew();
    heartbeat().catch(() => {});
    stop.signal.throwIfAborted();
    const answer = await start();
    stop.signal.throwIfAborted();
    return answer;
  } finally {
    ended.abort();
    clearTimeout(lapse);
  }
}

async function settleAll(redis, call, charged, deadline) {
  for (const [rule, units] of [...charged].reverse()) {
    await settle(redis, rule, call.id, units, call.final(rule, units), deadline);
  }
}

/** Never throws: the request has been made, and its answer counts more than its accounting. */
async function settle(redis, rule, id, charged, used, deadline) {
  try {
    const end = isLease(rule) ? ['RL.RELEASE', [rule.key, id]] : ['RL.SETTLE', [rule.key, id, used]];
    const { reply, before } = await send(redis, ...end, deadline);
    // The key has forgotten the id, because its charge is past. If the first reply was lost, that command has settled it.
    if (reply === null && used > charged && !before) {
      // This command is sent only once. It has no id, so the server would charge a repetition again.
      const excess = [rule.key, ...policy(rule), 'FORCE', used - charged];
      await within(deadline - performance.now(), redis.sendCommand(new Limiter(`RL.${rule.algorithm}`, excess)));
    }
  } catch (error) {
    console.warn(`${rule.key}: ${charged} of ${id} were not settled to ${used}: ${error.message}`);
  }
}

/** Sends a command that does not wait, and repeats it until the deadline if it gets no reply. */
function send(redis, name, args, deadline) {
  return repeated(() => within(deadline - performance.now(), redis.sendCommand(new Limiter(name, args))), deadline);
}

/**
 * Repeats a call that got no reply, until a deadline, which is extended by the time that the call stood in line. Returns the
 * reply, and whether the call had been made before without one.
 */
async function repeated(call, deadline, signal, inLine = () => 0) {
  for (let attempt = 0; ; attempt++) {
    try {
      return { reply: await call(deadline), before: attempt > 0 };
    } catch (error) {
      deadline += inLine();
      const answered = error instanceof ReplyError || error instanceof TypeError || error instanceof RangeError;
      if (answered || signal?.aborted || performance.now() + PAUSE_MS >= deadline) throw error;
      // An abort ends the pause; then the call throws the signal's reason.
      await sleep(PAUSE_MS, undefined, { signal }).catch(() => {});
    }
  }
}
