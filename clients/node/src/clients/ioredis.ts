import { limited } from '../clock.js';
import type { Word } from '../checks.js';
import { type Client, type Connection, type Node, onEnd, only, slotOf } from './client.js';

/** Options of the connections of this package: nothing is queued, sent again or repeated. */
const OWN = {
  autoResendUnfulfilledCommands: false,
  commandTimeout: undefined,
  enableAutoPipelining: false,
  enableOfflineQueue: false,
  enableReadyCheck: false,
  keyPrefix: '',
  lazyConnect: true,
  monitor: false,
  readOnly: false,
  reconnectOnError: null,
  retryStrategy: null,
  sentinelRetryStrategy: null,
  socketTimeout: undefined,
  stringNumbers: false,
};

/** A `Redis` or a `Cluster` of ioredis. */
export function ioredisClient(client: any): Client {
  const rest = {
    prefix: client.options.keyPrefix ?? '',
    isClosed: () => client.status === 'end',
    onClose: onEnd(client),
  };
  return client.isCluster ? { ...rest, ...cluster(client) } : { ...rest, ...only(nodeOf('', client)) };
}

function cluster(client: any) {
  const at = (address: string) => {
    const found = client.nodes('all').find(({ options }: any) => `${options.host}:${options.port}` === address);
    return found && nodeOf(address, found);
  };
  return {
    at,
    locate(key: Word) {
      const address = client.slots[slotOf(key)]?.[0];
      return client.status === 'ready' && address ? at(address) : undefined;
    },

    // The client learns from a redirection which server has a key now, so it gets a call that takes nothing. It finds the keys of
    // commands that it knows, puts its prefix before them, and may repeat this one.
    async search(key: Word, ms: number) {
      const { status } = client;
      if (!['ready', 'wait', 'connecting', 'connect'].includes(status)) throw new Error(`the cluster's status is ${status}`);
      const prefix = client.options.keyPrefix ?? '';
      let onClose = () => {};
      const closed = new Promise((_, reject) => {
        onClose = () => reject(new Error('no node of the cluster was reached'));
        client.once('close', onClose);
      });
      try {
        const rest = typeof key === 'string' ? key.slice(prefix.length) : key.subarray(Buffer.byteLength(prefix));
        await limited(ms, undefined, Promise.race([client.exists(rest), closed]));
      } finally {
        client.off('close', onClose);
      }
    },
  };
}

function nodeOf(name: string, client: any): Node {
  const sentinels: object[] | null | undefined = client.options.sentinels;
  let first = 0;
  return {
    name,
    async open(connectMs) {
      const asked = first;
      const order = sentinels && { sentinels: [...sentinels.slice(asked), ...sentinels.slice(0, asked)] };
      try {
        return await opened(client, connectMs, { ...order });
      } catch (error) {
        // The Sentinel that was asked first may be silent. ioredis would ask the next one too late, so the next attempt begins there.
        if (sentinels) first = (asked + 1) % sentinels.length;
        throw error;
      }
    },
  };
}

async function opened(client: any, connectMs: number, options: object): Promise<Connection> {
  const own = client.duplicate({ ...OWN, ...options, connectTimeout: Math.max(1, Math.ceil(connectMs)) });
  let cause: unknown;
  own.on('error', (error: unknown) => (cause = error));
  // The client says that it is connected before the server has answered its AUTH. It ends the connection if the password is wrong.
  const connect = async () => {
    await own.connect();
    if (!own.options.username && !own.options.password) return;
    // Every user may call HELLO, which changes nothing.
    await own.call('HELLO').catch(() => {});
    if (cause) throw cause;
  };
  try {
    await limited(connectMs, undefined, connect());
  } catch (error) {
    own.disconnect();
    throw cause ?? error;
  }
  return {
    isOpen: () => own.status === 'ready',
    close: () => own.disconnect(),
    send([name, ...args], _, asking) {
      if (asking) own.call('ASKING').catch(() => {});
      return own.call(name, ...args);
    },
  };
}
