import { performance } from 'node:perf_hooks';
import { limited, pause } from '../clock.js';
import type { Word } from '../checks.js';
import { type Client, type Connection, type Node, onEnd, only, slotOf } from './client.js';

/** How long a cluster client is asked by one call where a key is. The node that it chooses may be down. */
const SEARCH_MS = 200;

/** A client, a cluster client or a pool of node-redis. */
export function nodeRedisClient(client: any): Client {
  const rest = {
    prefix: '',
    // Its own connections do not keep the process, so calls may go on.
    isClosed: () => false,
    onClose: onEnd(client),
  };
  if (typeof client.nodeClient === 'function') return { ...rest, ...cluster(client) };
  const node = typeof client.duplicate === 'function' ? nodeOf('', () => client) : nodeOf('', ofPool(client));
  return { ...rest, ...only(node) };
}

/** Returns a function that returns one of the clients of a pool. */
function ofPool(pool: any) {
  let found: any;
  return async () => (found ??= await pool.execute(async (client: any) => ({ client }))).client;
}

function cluster(client: any) {
  return {
    at(address: string) {
      const node = client.nodeByAddress.get(address);
      return node && nodeOf(address, () => client.nodeClient(node));
    },

    locate(key: Word) {
      const { master } = client.slots[slotOf(key)] ?? {};
      return master && nodeOf(master.address, () => client.nodeClient(master));
    },

    // The client looks for the nodes anew when a node redirects a call. So the nodes get calls that take nothing, without a key by
    // which the client would choose the node that it takes for the right one.
    async search(key: Word, ms: number) {
      for (const end = performance.now() + ms; performance.now() < end; await pause(20)) {
        const left = Math.max(1, Math.min(SEARCH_MS, end - performance.now()));
        const leaver = new AbortController();
        try {
          // `signal` is of version 4.
          const options = { abortSignal: leaver.signal, signal: leaver.signal };
          return await limited(left, undefined, client.sendCommand(undefined, false, ['EXISTS', key], options));
        } catch {
          leaver.abort();
        }
      }
      throw new Error('the cluster client finds no node that has the key');
    },
  };
}

function nodeOf(name: string, clientOf: () => any): Node {
  return { name, open: async (connectMs) => opened(await limited(connectMs, undefined, Promise.resolve(clientOf())), connectMs) };
}

async function opened(client: any, connectMs: number): Promise<Connection> {
  const own = client.duplicate({
    clientSideCache: undefined,
    commandOptions: undefined,
    commandsQueueMaxLength: undefined,
    disableOfflineQueue: true,
    isolationPoolOptions: undefined,
    pingInterval: undefined,
    readonly: false,
    socket: {
      ...client.options?.socket,
      connectTimeout: Math.max(1, Math.ceil(connectMs)),
      reconnectStrategy: false,
      socketTimeout: undefined,
    },
  });
  const close = closer(own);
  try {
    await limited(connectMs, undefined, own.connect());
  } catch (error) {
    close();
    throw error;
  }
  // The program's own client keeps the process, this one does not.
  own.unref();
  return {
    isOpen: () => own.isReady,
    close,
    send(words, _, asking) {
      if (asking) own.sendCommand(['ASKING']).catch(() => {});
      return own.sendCommand(words, {});
    },
  };
}

/**
 * Returns a function that closes a client that is not opened yet. While the socket of a client is being made, the client can't
 * close it: it would forget the socket, which would stay open for ever. So it is closed as soon as it is made.
 */
function closer(client: any) {
  let [made, closed] = [false, false];
  // Version 4 has `disconnect`, which returns a promise, and throws on its own if that is called before the client is ready.
  const old = typeof client.destroy !== 'function';
  const close = () => {
    closed = true;
    if (!made || !client.isOpen) return;
    if (old) client.disconnect().catch(() => {});
    else client.destroy();
  };
  client.on(old ? 'ready' : 'connect', () => {
    made = true;
    if (closed) close();
  });
  // The call itself fails with the error, too.
  client.on('error', () => {});
  return close;
}
