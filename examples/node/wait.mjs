import { Command } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';

/** The client waits for a reply this much longer than the wait that it asks the server for. */
const MARGIN_MS = 5_000;
/** The pause before a call is sent again after its slot has moved to another node. */
const RETRY_MS = 100;

/** A command of the module. Without `getKeys`, ioredis finds no key in it, and a Cluster sends it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/**
 * Waits in the key's queue until the units are free, at most `wait` seconds. The queue is first come, first served across all
 * processes.
 *
 *     const limit = { algorithm: 'SLIDE', limit: 5, period: 1 };
 *     const { granted } = await waitInLine(redis, limit, { key: 'partner-api', wait: 30 });
 *     if (granted) await callPartner();
 *
 * `redis` is a Redis or a Cluster of ioredis, and may be shared: if the units are free, they are taken on its connection. A call
 * that has to wait gets its own connection, which is closed afterwards: on a shared connection it would delay all commands behind
 * it. To leave the queue, abort the `signal`: the connection is closed, and nothing is charged.
 *
 * Returns the five integers of the reply, by name. `granted` is 0 if the time is over, or if the units can't be free in time.
 * Throws the errors of ioredis, and the signal's reason.
 */
export async function waitInLine(redis, { algorithm, limit, period, options = [] }, { key, cost = 1, wait, signal }) {
  const command = (...block) => {
    const args = [key, limit, `${Math.round(period * 1e6)}us`, ...options, 'COST', cost, ...block];
    return new Limiter(`RL.${algorithm}`, args);
  };
  return named(await sendInLine(redis, command, ([, , , waitMs]) => waitMs, { wait, signal }));
}

/**
 * Sends what `command` returns: at first on the shared connection; if that is denied, with the words of `BLOCK` at its end on a
 * connection of its own. `waitMsOf` finds the wait in a reply, whose first element says whether it is granted. With `patienceMs`,
 * the reply on the shared connection must arrive within this time.
 */
export async function sendInLine(redis, command, waitMsOf, { wait, signal, patienceMs }) {
  if (!(wait > 0 && wait <= 86_400)) throw new RangeError('wait is a number of seconds, above 0 and at most 86400');
  const end = performance.now() + wait * 1000;
  for (;;) {
    signal?.throwIfAborted();
    const reply = await within(patienceMs, redis.sendCommand(command()));
    const left = Math.ceil(end - performance.now());
    if (reply[0] || waitMsOf(reply) < 0 || left <= 0) return reply;
    try {
      return await alone(redis, command('BLOCK', `${left}ms`), left, signal);
    } catch (error) {
      // The slot moves, or the server has become a replica: the next call on the shared client finds the new node.
      if (!/^(MOVED|ASK|TRYAGAIN|UNBLOCKED)\b/.test(error.message)) throw error;
      await sleep(RETRY_MS, undefined, { signal });
    }
  }
}

/**
 * The result of a promise, or an error if it is not there in time; without `ms` it may take any time. ioredis may never settle the
 * promise of a call whose connection closed.
 */
export function within(ms, promise) {
  if (ms === undefined) return promise;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('Redis did not answer in time')), Math.max(0, ms));
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Sends a command on a separate connection to the node that has its key. */
async function alone(redis, command, patienceMs, signal) {
  const commandTimeout = patienceMs + MARGIN_MS;
  // One attempt: a command that is sent again goes to the end of the queue, and may be charged twice.
  const once = { commandTimeout, socketTimeout: undefined, lazyConnect: true, retryStrategy: null, maxRetriesPerRequest: 0 };
  const own = owner(redis, command).duplicate({ ...once, autoResendUnfulfilledCommands: false, enableOfflineQueue: true });
  // The command itself fails with the error, too.
  own.on('error', () => {});
  const leave = () => own.disconnect();
  signal?.addEventListener('abort', leave);
  try {
    return await own.sendCommand(command);
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  } finally {
    signal?.removeEventListener('abort', leave);
    own.disconnect();
  }
}

/** The client of the node that has the command's key. */
function owner(redis, command) {
  if (!redis.isCluster) return redis;
  const [address] = redis.slots[command.getSlot()];
  const node = redis.nodes('master').find(({ options }) => `${options.host}:${options.port}` === address);
  if (!node) throw new Error(`no client of the cluster is connected to ${address}`);
  return node;
}

function named([granted, limit, remaining, waitMs, resetMs]) {
  return { granted, limit, remaining, waitMs, resetMs };
}
