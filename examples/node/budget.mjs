import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Command, ReplyError } from 'ioredis';
import { waitInLine } from './wait.mjs';

/** A call whose reply is lost is repeated after each of these pauses. */
const PAUSES_MS = [100, 500, 2000];

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/** The call was denied. Retry in `retryAfter` seconds; undefined means that a retry is never granted. */
export class OverBudget extends Error {
  constructor(key, { limit, waitMs }) {
    super(`${key}: the limit of ${limit} is reached; retry ${waitMs < 0 ? 'never' : `in ${waitMs / 1000} s`}`);
    this.key = key;
    this.retryAfter = waitMs < 0 ? undefined : waitMs / 1000;
  }
}

/**
 * A budget of tokens for calls of a language model. What a call costs is known only afterwards, so an estimate is charged
 * before the call, and settled to the tokens that it really used.
 *
 *     const limits = [
 *       { key: 'llm:tokens', algorithm: 'SLIDE', limit: 100_000, period: 60 },
 *       { key: 'llm:requests', algorithm: 'SLIDE', limit: 500, period: 60, cost: 1 },
 *     ];
 *     const answer = await withBudget(redis, limits, { estimate: 1200, wait: 90 }, async (charge) => {
 *       const answer = await model.complete(prompt, { maxTokens: 1000 });
 *       charge.used = answer.usage.totalTokens;
 *       return answer;
 *     });
 *
 * `redis` is a Redis or a Cluster of ioredis, and may be shared: a call that has to wait gets its own connection, from
 * wait.mjs. Set commandTimeout, because ioredis may never reject a call whose connection closed, and set
 * autoResendUnfulfilledCommands to false, because ioredis would also repeat the commands that must not be repeated. A limit
 * with a `cost` counts requests, one without counts tokens. All limits are charged, or none: they are taken in order, each
 * with what is left of the `wait` in seconds, and if one is denied, those before it are given back, and OverBudget is
 * thrown. Wait for longer than the period: the server denies a call at once if its units will not be free in time by
 * themselves, although another call may settle to less.
 *
 * When `request` ends: if it has set `charge.used`, the charge becomes that. The rest of the estimate is free again at once;
 * more than the estimate is taken now, whatever the limit. If it has not set it, the estimate stays, or, if it throws,
 * everything is given back. A request that fails halfway and has used tokens sets `used` before it throws. To leave the
 * line, abort the `signal`; `request` passes it on to what it calls.
 *
 * Each charge has an `id`, by default a new UUID. A call whose reply is lost is repeated with the same id, and charged once.
 * Pass the id of a job if a process that restarts repeats its request. Two charges at the same time need different ids.
 */
export async function withBudget(redis, limits, { estimate, wait, id = randomUUID(), signal }, request) {
  const end = performance.now() + wait * 1000;
  const charge = { id, used: undefined };
  let taken = new Map();
  try {
    for (const limit of limits) {
      const cost = limit.cost ?? estimate;
      // Before the call, because a call that fails may have been charged.
      taken.set(limit, cost);
      const options = [...(limit.options ?? []), 'ID', id];
      const { reply } = await repeated(() => {
        const left = Math.max(0.001, (end - performance.now()) / 1000);
        return waitInLine(redis, { ...limit, options }, { key: limit.key, cost, wait: left, signal });
      }, signal);
      if (!reply.granted) {
        taken.delete(limit);
        throw new OverBudget(limit.key, reply);
      }
      // Not the estimate, if this id was charged with another one before.
      taken.set(limit, reply.granted);
    }
    signal?.throwIfAborted();
    return await request(charge);
  } catch (error) {
    if (charge.used === undefined) {
      for (const [limit, charged] of taken) await settle(redis, limit, id, charged, 0);
      taken = new Map();
    }
    throw error;
  } finally {
    for (const [limit, charged] of taken) {
      // Also if nothing changes, because the server remembers the id until then.
      await settle(redis, limit, id, charged, limit.cost ?? charge.used ?? charged);
    }
  }
}

/** Never throws: the request has been made, and its answer counts more than its accounting. */
async function settle(redis, limit, id, charged, used) {
  const { key, algorithm, limit: units, period, options = [] } = limit;
  try {
    const { reply, before } = await repeated(() => redis.sendCommand(new Limiter('RL.SETTLE', [key, id, used])));
    // The id is forgotten, because the charge is past. But if the first reply was lost, that call has settled it.
    if (reply === null && used > charged && !before) {
      const exact = `${Math.round(period * 1e6)}us`;
      // Sent once: it has no id, so it would be charged twice.
      await redis.sendCommand(new Limiter(`RL.${algorithm}`, [key, units, exact, ...options, 'FORCE', used - charged]));
    }
  } catch (error) {
    console.warn(`${key}: ${charged} of ${id} were not settled to ${used}: ${error.message}`);
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
