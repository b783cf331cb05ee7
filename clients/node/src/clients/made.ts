import { limited } from '../clock.js';
import { type Client, type Connection, only, slotOf } from './client.js';

/** valkey-glide reports errors of the server in words of its own. These are the server's codes. */
const CODES: Record<string, string> = {
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
};

/**
 * A function that makes clients of valkey-glide, or Sentinel clients of node-redis. Each connection of this package is such a
 * client.
 */
export function madeClient(make: (options: { requestTimeout: number }) => any): Client {
  const node = {
    name: '',
    async open(connectMs: number, replyMs: number) {
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
  return { ...only(node), prefix: '', isClosed: () => false, onClose: () => () => {} };
}

async function glide(client: any): Promise<Connection> {
  const inCluster = typeof client.pubsubShardChannels === 'function';
  let [open, calls] = [true, 0];
  let id: unknown;
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

async function sentinel(client: any): Promise<Connection> {
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

const texts: Map<number, string> = new Map();

/** A text that hashes to this slot. */
function textIn(slot: number) {
  let text = texts.get(slot);
  if (text === undefined) {
    for (let n = 0; slotOf((text = String(n))) !== slot; n++);
    texts.set(slot, text);
  }
  return text;
}

/**
 * The error as the server has replied it: `ERR unknown command`. valkey-glide says that in two ways, `An error was signalled by the
 * server: - ResponseError: unknown command` and, for codes that it does not know, `OOM: command not allowed`. If the server refuses a
 * connection, the code is in the middle: `Received error for address '127.0.0.1:6379': WRONGPASS: invalid password`.
 */
function inWordsOfTheServer(error: unknown) {
  if (!(error instanceof Error)) return error;
  const [, refusal, reason] = /: (WRONGPASS|NOAUTH|NOPERM): ([^\n]*)/.exec(error.message) ?? [];
  if (refusal) return new Error(`${refusal} ${reason}`, { cause: error });
  const [, kind, known] = /An error was signalled by the server: - (\w+): (.*)$/s.exec(error.message) ?? [];
  if (kind) return new Error(`${CODES[kind] ?? 'ERR'} ${known.trim()}`, { cause: error });
  const [, code, detail] = /^([A-Z][A-Z0-9_]+): (.*)$/s.exec(error.message) ?? [];
  return code ? new Error(`${code} ${detail}`, { cause: error }) : error;
}
