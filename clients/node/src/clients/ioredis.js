import { limited } from '../clock.js';
import { slotOf } from './client.js';

/** @import { Word } from '../policies.js' */
/** @import { Client, Connection, Node } from './client.js' */

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

/** A `Redis` or a `Cluster` of ioredis. @param {any} client @returns {Client} */
export function ioredisClient(client) {
  const rest = {
    prefix: client.options.keyPrefix ?? '',
    isClosed: () => client.status === 'end',
    onClose(/** @type {() => void} */ action) {
      client.on('end', action);
      return () => client.off('end', action);
    },
  };
  return client.isCluster ? { ...rest, ...cluster(client) } : { ...rest, ...single(client) };
}

/** @param {any} client */
function single(client) {
  const node = nodeOf('', client);
  return { locate: () => node, at: () => undefined, search: async () => {} };
}

/** @param {any} client */
function cluster(client) {
  /** @param {string} address */
  const at = (address) => {
    const found = client.nodes('all').find((/** @type {any} */ { options }) => `${options.host}:${options.port}` === address);
    return found && nodeOf(address, found);
  };
  return {
    at,
    locate(/** @type {Word} */ key) {
      const address = client.slots[slotOf(key)]?.[0];
      return client.status === 'ready' && address ? at(address) : undefined;
    },

    // The client learns from a redirection which server has a key now, so it gets a call that takes nothing. It finds the keys of
    // commands that it knows, puts its prefix before them, and may repeat this one.
    async search(/** @type {Word} */ key, /** @type {number} */ ms) {
      if (!['ready', 'wait', 'connecting', 'connect'].includes(client.status)) throw new Error(`the cluster's status is ${client.status}`);
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

/** @param {string} name @param {any} client @returns {Node} */
function nodeOf(name, client) {
  return { name, open: (connectMs) => opened(client, connectMs) };
}

/** @param {any} client @param {number} connectMs @returns {Promise<Connection>} */
async function opened(client, connectMs) {
  const own = client.duplicate({ ...OWN, connectTimeout: Math.max(1, Math.ceil(connectMs)) });
  /** @type {unknown} */
  let cause;
  own.on('error', (/** @type {unknown} */ error) => (cause = error));
  try {
    await limited(connectMs, undefined, own.connect());
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
