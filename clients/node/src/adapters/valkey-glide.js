import { NoReply } from '../errors.js';
import { limited, MARGIN_MS, slotOf, textIn } from './adapter.js';

/** @typedef {import('./adapter.js').Adapter} Adapter */
/** @typedef {import('./adapter.js').Call} Call */

/** The client reports errors of the server in words of its own. These are the server's codes. */
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

/** The names of the client's errors. */
const NAMES = ['CircuitBreakerError', 'ClosingError', 'ConnectionError', 'RequestError', 'TimeoutError'];

/**
 * An adapter for a client or a cluster client of valkey-glide. They do not send a command again whose connection was lost.
 * But a command that waits for a connection is sent when there is one, also if its caller has given it up: the client cannot
 * take it back.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function valkeyGlideAdapter(client) {
  const inCluster = typeof client.ssubscribe === 'function';
  const { readFrom = 'primary' } = client.config;

  /**
   * @param {any} glide
   * @param {Call} call
   * @param {number} ms
   * @param {AbortSignal} [signal]
   */
  const send = async (glide, { name, args, keys, replica }, ms, signal) => {
    const type = replica && readFrom !== 'primary' ? 'replicaSlotKey' : 'primarySlotKey';
    // The client takes only text as a key of a route, and routes by the number of a slot wrongly.
    const route = inCluster ? { route: { type, key: textIn(slotOf(keys[0])) } } : {};
    try {
      return await limited(ms, signal, () => glide.customCommand([name, ...args], route));
    } catch (error) {
      throw inWordsOfTheServer(error);
    }
  };

  return {
    send: (call, patienceMs, signal) => send(client, call, patienceMs, signal),

    // In a cluster, the client of its own is one for the cluster, too: the class of another one is out of reach here.
    async wait(call, waitMs, patienceMs, joined, signal) {
      signal?.throwIfAborted();
      const { config } = client;
      const opening = client.constructor.createClient({
        ...config,
        advancedConfiguration: { ...config.advancedConfiguration, connectionTimeout: Math.max(1, Math.ceil(patienceMs)) },
        clientCircuitBreaker: undefined,
        clientSideCache: undefined,
        lazyConnect: false,
        periodicChecks: inCluster ? 'disabled' : undefined,
        pubsubSubscriptions: undefined,
        requestTimeout: Math.ceil(waitMs + MARGIN_MS),
      });
      let own, id;
      try {
        own = await limited(patienceMs, signal, () => opening);
        id = await send(own, { name: 'CLIENT', args: ['ID'], keys: call.keys }, patienceMs, signal);
      } catch (error) {
        opening.then((/** @type {any} */ late) => late.close(), () => {});
        throw signal?.aborted || error instanceof NoReply ? error : new NoReply(`no connection: ${message(error)}`, { cause: error });
      }
      let done = false;
      try {
        joined();
        const reply = await send(own, call, waitMs + MARGIN_MS, signal);
        done = true;
        return reply;
      } finally {
        // `close` leaves the connection open while a call is under way, and so the call would stay in line.
        const end = { name: 'CLIENT', args: ['KILL', 'ID', String(id)], keys: call.keys };
        if (!done) send(client, end, patienceMs).catch(() => {});
        own.close();
      }
    },

    // Without `track`: the client does not report changes of keys.
    nodeName: () => '',
  };
}

/** @param {unknown} error */
function message(error) {
  return error instanceof Error ? error.message : String(error);
}

/**
 * The error as the server has replied it: `ERR unknown command`. The client says that in two ways, `An error was signalled by
 * the server: - ResponseError: unknown command` and, for codes that it does not know, `OOM: command not allowed`. Other
 * errors mean that no reply has come.
 *
 * @param {unknown} error
 */
function inWordsOfTheServer(error) {
  if (!(error instanceof Error) || !NAMES.includes(error.name) || error instanceof NoReply) return error;
  const [, kind, known] = /^An error was signalled by the server: - (\w+): (.*)$/s.exec(error.message) ?? [];
  if (kind) return new Error(`${CODES[kind] ?? 'ERR'} ${known.trim()}`, { cause: error });
  const [, code, detail] = /^([A-Z][A-Z0-9_]*): (.*)$/s.exec(error.message) ?? [];
  return code ? new Error(`${code} ${detail}`, { cause: error }) : new NoReply(error.message, { cause: error });
}
