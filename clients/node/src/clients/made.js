import { limited } from '../clock.js';
import { slotOf } from './client.js';

/** @import { Client, Connection } from './client.js' */

/** valkey-glide reports errors of the server in words of its own. These are the server's codes. */
const CODES = /** @type {Record<string, string>} */ ({
  Ask: 'ASK',
  BusyLoadingError: 'LOADING',
  ClusterDown: 'CLUSTERDOWN',
  CrossSlot: 'CROSSSLOT',
  MasterDown: 'MASTERDOWN',
  Moved: 'MOVED',
  PermissionDenied: 'NOPERM',
  ReadOnly: 'READONLY',
  ResponseError: 'ERR',
  TryAgain: 'TRYAGAIN',
});

/**
 * A function that makes clients of valkey-glide, or Sentinel clients of node-redis. Each connection of this package is such a client.
 * @param {(options: { requestTimeout: number }) => any} make @returns {Client}
 */
export function madeClient(make) {
  const node = {
    name: '',
    async open(/** @type {number} */ connectMs, /** @type {number} */ replyMs) {
      // valkey-glide gives up and forgets a call after this time. A time of 0 would be its default.
      const making = Promise.resolve(make({ requestTimeout: Math.max(1, Math.ceil(replyMs)) }));
      try {
        const client = await limited(connectMs, undefined, making);
        return await limited(connectMs, undefined, client.customCommand ? glide(client) : sentinel(client));
      } catch (error) {
        making.then((late) => (late.customCommand ? late.close() : late.isOpen && late.destroy()), () => {});
        throw inWordsOfTheServer(error);
      }
    },
  };
  return {
    prefix: '',
    locate: () => node,
    search: async () => {},
    at: () => undefined,
    isClosed: () => false,
    onClose: () => () => {},
  };
}

/** @param {any} client @returns {Promise<Connection>} */
async function glide(client) {
  const inCluster = typeof client.pubsubShardChannels === 'function';
  let [open, calls] = [true, 0];
  /** @type {unknown} */
  let id;
  return {
    isOpen: () => open,
    async send(words, key) {
      // The client takes only text as a key of a route, and routes by the number of a slot wrongly.
      const route = inCluster ? { route: { type: 'primarySlotKey', key: textIn(slotOf(key)) } } : {};
      calls++;
      try {
        // `close` leaves a connection open while a call is under way, so a call that waits needs to be ended by the server.
        if (words.includes('BLOCK')) id = await client.customCommand(['CLIENT', 'ID'], route);
        return await client.customCommand(words, route);
      } catch (error) {
        throw inWordsOfTheServer(error);
      } finally {
        calls--;
      }
    },
    close() {
      if (!open) return;
      open = false;
      client.close();
    },
    endWait: (other, key) => (id !== undefined && calls ? other.send(['CLIENT', 'KILL', 'ID', String(id)], key) : undefined),
  };
}

/** @param {any} client @returns {Promise<Connection>} */
async function sentinel(client) {
  if (typeof client.getMasterNode !== 'function') {
    throw new TypeError('the function must make a client of valkey-glide, or a Sentinel client of node-redis');
  }
  client.on('error', () => {});
  if (!client.isOpen) await client.connect();
  const leaver = new AbortController();
  return {
    isOpen: () => client.isReady,
    send: (words) => client.sendCommand(false, words, { abortSignal: leaver.signal }),
    close() {
      leaver.abort();
      if (client.isOpen) client.destroy();
    },
  };
}

/** @type {Map<number, string>} */
const texts = new Map();

/** A text that hashes to this slot. @param {number} slot */
function textIn(slot) {
  let text = texts.get(slot);
  if (text === undefined) {
    for (let n = 0; slotOf((text = String(n))) !== slot; n++);
    texts.set(slot, text);
  }
  return text;
}

/**
 * The error as the server has replied it: `ERR unknown command`. valkey-glide says that in two ways, `An error was signalled by the
 * server: - ResponseError: unknown command` and, for codes that it does not know, `OOM: command not allowed`.
 * @param {unknown} error
 */
function inWordsOfTheServer(error) {
  if (!(error instanceof Error)) return error;
  const [, kind, known] = /An error was signalled by the server: - (\w+): (.*)$/s.exec(error.message) ?? [];
  if (kind) return new Error(`${CODES[kind] ?? 'ERR'} ${known.trim()}`, { cause: error });
  const [, code, detail] = /^([A-Z][A-Z0-9_]+): (.*)$/s.exec(error.message) ?? [];
  return code ? new Error(`${code} ${detail}`, { cause: error }) : error;
}
