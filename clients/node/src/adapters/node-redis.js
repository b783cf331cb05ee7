import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { NoReply } from '../errors.js';
import { limited, MARGIN_MS, runId, slotOf } from './adapter.js';

/** @typedef {import('./adapter.js').Adapter} Adapter */
/** @typedef {import('./adapter.js').Call} Call */

/**
 * An adapter for a client, a cluster or a sentinel client of node-redis. Clients and cluster clients of node-redis do not
 * send a command again after a lost connection. A sentinel client does; here it is kept from it.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function nodeRedisAdapter(client) {
  const send = typeof client.nodeClient === 'function' ? clusterSend : isSentinel(client) ? sentinelSend : clientSend;
  return {
    async send(call, patienceMs, signal) {
      const deadline = performance.now() + patienceMs;
      return sent(patienceMs, signal, call, (words) => send(client, call, words, deadline));
    },

    async wait(call, waitMs, patienceMs, joined, signal) {
      const own = await limited(patienceMs, signal, () => alone(client, call, patienceMs));
      const close = closer(own);
      try {
        await limited(patienceMs, signal, () => own.connect());
        joined();
        return await sent(waitMs + MARGIN_MS, signal, call, (words) => clientSend(own, call, words));
      } finally {
        close();
      }
    },

    nodeName(call) {
      return typeof client.nodeClient === 'function' ? client.slots[slotOf(call.keys[0])]?.master?.address ?? '' : '';
    },

    async track(call, patienceMs, { changed, lost }) {
      const both = [await alone(client, call, patienceMs, RESP2), await alone(client, call, patienceMs, RESP2)];
      const [reader, listener] = both;
      const closers = both.map(closer);
      const closeBoth = () => closers.forEach((close) => close());
      try {
        await limited(patienceMs, undefined, async () => {
          await Promise.all(both.map((one) => one.connect()));
          const id = await listener.sendCommand(['CLIENT', 'ID']);
          const runs = await Promise.all(both.map(async (one) => runId(String(await one.sendCommand(['INFO', 'server'])))));
          if (runs[0] !== runs[1]) throw new NoReply('the connections are to two servers');
          await listener.subscribe('__redis__:invalidate', (/** @type {Buffer[] | null} */ keys) => {
            for (const key of keys ?? [null]) changed(key);
          }, true);
          await reader.sendCommand(['CLIENT', 'TRACKING', 'ON', 'REDIRECT', String(id)]);
        });
      } catch (error) {
        closeBoth();
        throw error;
      }
      for (const one of both) {
        for (const event of ['end', 'error']) {
          one.once(event, () => {
            closeBoth();
            lost();
          });
        }
      }
      if (both.some(({ isReady }) => !isReady)) lost();
      return {
        send: (call, patienceMs) => sent(patienceMs, undefined, call, (words) => clientSend(reader, call, words)),
        close: closeBoth,
      };
    },
  };
}

/** @param {any} client */
function isSentinel(client) {
  return typeof client.getMasterNode === 'function' && typeof client._execute === 'function';
}

/**
 * Sends words, and gives them up after this time: a command that the client has queued and not sent yet must not be sent
 * later, for nobody. The client reads the words when it sends them, so they are replaced by a `PING`.
 *
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @param {Call} call
 * @param {(words: import('../policies.js').Word[]) => Promise<unknown>} send
 */
async function sent(ms, signal, { name, args }, send) {
  const words = [name, ...args];
  try {
    return await limited(ms, signal, () => send(words));
  } catch (error) {
    words.splice(0, words.length, 'PING');
    throw error;
  }
}

/** Under RESP2, because only there the server tells a second connection of changes. Notices of maintenance need RESP3. */
const RESP2 = { RESP: 2, maintNotifications: 'disabled' };

/** Integers as numbers, whatever the client maps them to. `returnBuffers` is of version 4. */
const PLAIN = { typeMapping: {}, returnBuffers: false };

/** @typedef {import('../policies.js').Word} Word */

/**
 * @param {any} client
 * @param {Call} call
 * @param {Word[]} words
 */
function clientSend(client, call, words) {
  return client.sendCommand(words, { ...PLAIN });
}

/**
 * @param {any} cluster
 * @param {Call} call
 * @param {Word[]} words
 * @param {number} deadline
 */
async function clusterSend(cluster, call, words, deadline) {
  await reachable(cluster, call, deadline);
  return cluster.sendCommand(call.keys[0], call.replica ?? false, words, { ...PLAIN });
}

/**
 * Waits until the primary that has the key is connected. A cluster client looks for a new primary only when some node redirects
 * a command. If the node is lost that has the key, none does; so it is told to look. Version 4 offers no way to tell it.
 *
 * @param {any} cluster
 * @param {Call} call
 * @param {number} deadline
 */
async function reachable(cluster, call, deadline) {
  const slot = slotOf(call.keys[0]);
  const lost = () => {
    const client = cluster.slots[slot]?.master?.client;
    return client?.isReady === false ? client : undefined;
  };
  while (typeof cluster._slots?.rediscover === 'function' && lost() && performance.now() < deadline) {
    const clients = cluster.masters.map((/** @type {any} */ { client }) => client);
    const other = clients.find((/** @type {any} */ client) => client?.isReady) ?? lost();
    await cluster._slots.rediscover(other).catch(() => {});
    if (lost()) await sleep(Math.min(100, Math.max(0, deadline - performance.now())));
  }
}

/**
 * A sentinel client calls this function again after an error, also if the connection was lost before the reply came. So such an
 * error is returned, and thrown only here. After READONLY the client looks for the new primary; the call was not executed.
 *
 * @param {any} sentinel
 * @param {Call} call
 * @param {Word[]} words
 */
async function sentinelSend(sentinel, call, words) {
  const { reply, error } = await sentinel._execute(call.replica ?? false, async (/** @type {any} */ client) => {
    try {
      return { reply: await clientSend(client, call, words) };
    } catch (error) {
      if (error instanceof Error && error.message.startsWith('READONLY')) throw error;
      return { error };
    }
  });
  if (error) throw error;
  return reply;
}

/**
 * A client with a connection of its own to the node of the key, not opened yet. It is not opened again when it is lost.
 *
 * @param {any} client
 * @param {Call} call
 * @param {number} patienceMs
 * @param {object} [options]
 */
async function alone(client, call, patienceMs, options) {
  const node = await nodeOf(client, call, performance.now() + patienceMs);
  const { socket } = node.options ?? {};
  return node.duplicate({
    clientSideCache: undefined,
    commandOptions: undefined,
    disableOfflineQueue: false,
    isolationPoolOptions: undefined,
    pingInterval: undefined,
    readonly: false,
    ...options,
    socket: {
      ...socket,
      connectTimeout: Math.max(1, Math.ceil(patienceMs)),
      reconnectStrategy: false,
      socketTimeout: undefined,
    },
  });
}

/**
 * @param {any} client
 * @param {Call} call
 * @param {number} deadline
 */
async function nodeOf(client, call, deadline) {
  if (typeof client.nodeClient === 'function') {
    await reachable(client, call, deadline);
    const { master } = client.slots[slotOf(call.keys[0])] ?? {};
    if (!master) throw new NoReply('the cluster knows no node for this key');
    return client.nodeClient(master);
  }
  if (!isSentinel(client)) return client;
  return client._execute(false, async (/** @type {any} */ node) => node);
}

/**
 * Returns a function that closes a client of this adapter's own, which is not opened yet. While the socket of a client is being
 * made, the client can't close it: it would forget the socket, which would stay open for ever. So it is closed as soon as it is
 * made.
 *
 * @param {any} client
 */
function closer(client) {
  let [made, closed] = [false, false];
  // Version 4 has `disconnect`, which returns a promise, and throws on its own if that is called before the client is ready.
  const old = typeof client.destroy !== 'function';
  const close = () => {
    closed = true;
    if (!made) return;
    if (old) client.disconnect().catch(() => {});
    else if (client.isOpen) client.destroy();
  };
  client.on(old ? 'ready' : 'connect', () => {
    made = true;
    if (closed) close();
  });
  // The call itself fails with the error, too.
  client.on('error', () => {});
  return close;
}
