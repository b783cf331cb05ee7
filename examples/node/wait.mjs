import { Command } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';

/** How much longer than the server the client waits for a reply. */
const MARGIN_MS = 5_000;
/** Before a call is sent again whose slot has moved to another node. */
const RETRY_MS = 100;

/** A command of the module. ioredis knows no key in it by itself, and a Cluster would send it to any node. */
class Limiter extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/**
 * Waits in line until the units are free, first come first served across all processes, and at most `wait` seconds.
 *
 *     const limit = { algorithm: 'SLIDE', limit: 5, period: 1 };
 *     const { granted } = await waitInLine(redis, limit, { key: 'partner-api', wait: 30 });
 *     if (granted) await callPartner();
 *
 * `redis` is a Redis or a Cluster of ioredis, also one that others use: what is free is taken there at once. A call that has to
 * wait gets a connection of its own, which is closed afterwards: on a shared one it would hold up all commands behind it. To
 * leave the line, abort the `signal`: the connection is closed, and nothing is charged.
 *
 * Returns the five integers of the reply, by name; `granted` is 0 when the time is over, or when the units can't be free in
 * time. Throws what ioredis throws, and the signal's reason.
 */
export async function waitInLine(redis, { algorithm, limit, period, options = [] }, { key, cost = 1, wait, signal }) {
  if (!(wait > 0 && wait <= 86_400)) throw new RangeError('wait is a number of seconds, above 0 and at most 86400');
  const end = performance.now() + wait * 1000;
  const command = (...block) => {
    const args = [key, limit, `${Math.round(period * 1e6)}us`, ...options, 'COST', cost, ...block];
    return new Limiter(`RL.${algorithm}`, args);
  };
  for (;;) {
    signal?.throwIfAborted();
    const reply = await redis.sendCommand(command());
    const left = Math.ceil(end - performance.now());
    const [granted, , , waitMs] = reply;
    if (granted || waitMs < 0 || left <= 0) return named(reply);
    try {
      return named(await alone(redis, command('BLOCK', `${left}ms`), left, signal));
    } catch (error) {
      // The slot is about to move, or the server has become a replica: the shared client finds the way.
      if (!/^(MOVED|ASK|TRYAGAIN|UNBLOCKED)\b/.test(error.message)) throw error;
      await sleep(RETRY_MS, undefined, { signal });
    }
  }
}

/** Sends a command on a connection of its own, to the node that has its key. */
async function alone(redis, command, patienceMs, signal) {
  const commandTimeout = patienceMs + MARGIN_MS;
  // One try: a command that is sent again goes to the end of the line, and may be charged twice.
  const once = { commandTimeout, socketTimeout: undefined, lazyConnect: true, retryStrategy: null, maxRetriesPerRequest: 0 };
  const own = owner(redis, command).duplicate({ ...once, autoResendUnfulfilledCommands: false, enableOfflineQueue: true });
  // The command fails, too, and tells it.
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
