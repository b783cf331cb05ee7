import { NoReply } from '../errors.js';
import { later, MARGIN_MS, runId, slotOf } from './adapter.js';

/** @typedef {import('./adapter.js').Adapter} Adapter */
/** @typedef {import('./adapter.js').Call} Call */

/** Under RESP2, because only there the server tells a second connection of changes. */
const RESP2 = { protocol: 2 };

/** A harmless command of ioredis, in the place of one that must not be sent again. */
const PING = '*1\r\n$4\r\nPING\r\n';

/**
 * An adapter for a `Redis` or a `Cluster` of ioredis, or of a package with the same interface.
 *
 * ioredis sends commands again when a connection is lost, and sends late those that it has queued while there was none. A
 * command of the limiter must not be sent again by itself, and not after its caller has given it up: it would be charged
 * twice, or for nobody. So a command that is given up writes a `PING` when ioredis wants to write it.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function ioredisAdapter(client) {
  const Once = onceClass(commandClass(client));

  /**
   * @param {any} redis
   * @param {Call} call
   * @param {number} patienceMs
   * @param {AbortSignal} [signal]
   */
  const send = (redis, call, patienceMs, signal) => new Promise((resolve, reject) => {
    const command = new Once(call.name, call.args, call.replica ? { readOnly: true } : {});
    command.keyWords = call.keys;
    const settle = (/** @type {() => void} */ outcome) => {
      command.givenUp = true;
      cancel();
      signal?.removeEventListener('abort', abort);
      outcome();
    };
    const fail = (/** @type {unknown} */ error) => settle(() => reject(error));
    const abort = () => fail(signal?.reason);
    const cancel = later(patienceMs, () => fail(new NoReply(`no reply within ${Math.ceil(patienceMs)} ms`)));
    signal?.addEventListener('abort', abort);
    command.onLost = () => fail(new NoReply('the connection was closed before the reply came'));
    redis.sendCommand(command).then((/** @type {unknown} */ reply) => settle(() => resolve(reply)), fail);
  });

  return {
    send: (call, patienceMs, signal) => send(client, call, patienceMs, signal),

    async wait(call, waitMs, patienceMs, joined, signal) {
      const own = alone(await owner(client, new Once(call.name, call.args), call, patienceMs), patienceMs);
      const leave = () => own.disconnect();
      signal?.addEventListener('abort', leave);
      try {
        await opened(own, patienceMs);
        joined();
        return await send(own, call, waitMs + MARGIN_MS, signal);
      } catch (error) {
        throw signal?.aborted ? signal.reason : error;
      } finally {
        signal?.removeEventListener('abort', leave);
        own.disconnect();
      }
    },

    nodeName: (call) => (client.isCluster ? client.slots[slotOf(call.keys[0])]?.[0] ?? '' : ''),

    async track(call, patienceMs, { changed, lost }) {
      const node = await owner(client, new Once(call.name, call.args), call, patienceMs);
      const [reader, listener] = [alone(node, patienceMs, RESP2), alone(node, patienceMs, RESP2)];
      const both = [reader, listener];
      const close = () => both.forEach((one) => one.disconnect());
      try {
        await Promise.all(both.map((one) => opened(one, patienceMs)));
        listener.on('messageBuffer', (/** @type {Buffer} */ _, /** @type {Buffer[] | null} */ keys) => {
          for (const key of keys ?? [null]) changed(key);
        });
        const id = await listener.client('ID');
        const runs = await Promise.all(both.map(async (one) => runId(await one.info('server'))));
        if (runs[0] !== runs[1]) throw new NoReply('the connections are to two servers');
        await listener.subscribe('__redis__:invalidate');
        await reader.client('TRACKING', 'ON', 'REDIRECT', id);
      } catch (error) {
        close();
        throw error;
      }
      for (const one of both) {
        one.once('end', () => {
          close();
          lost();
        });
      }
      if (both.some(({ status }) => status !== 'ready')) lost();
      return { send: (call, patienceMs) => send(reader, call, patienceMs), close };
    },
  };
}

/**
 * The class of the client's commands: that of its own copy of ioredis. A client sends each command through its `sendCommand`.
 *
 * @param {any} client
 * @returns {new (...args: any[]) => any}
 */
function commandClass(client) {
  /** @type {any} */
  let Command;
  client.call.call({ options: {}, sendCommand: (/** @type {any} */ command) => (Command = command.constructor) }, 'PING');
  return Command;
}

/** @type {WeakMap<Function, any>} */
const classes = new WeakMap();
/** @type {WeakMap<object, Set<any>>} the commands that were written to a socket and have no reply yet */
const written = new WeakMap();

/**
 * @param {new (...args: any[]) => any} Command
 */
function onceClass(Command) {
  if (!classes.has(Command)) classes.set(Command, makeClass(Command));
  return classes.get(Command);
}

/** @param {new (...args: any[]) => any} Command */
function makeClass(Command) {
  return class Once extends Command {
    /** @type {import('../policies.js').Word[]} */
    keyWords = [];
    givenUp = false;
    onLost = () => {};

    // ioredis finds no key in the commands of a module, and a Cluster would send them to any node.
    getKeys() {
      return this.keyWords;
    }

    /** @param {any} socket */
    toWritable(socket) {
      if (this.givenUp) return PING;
      let commands = written.get(socket);
      if (!commands) {
        const opened = new Set();
        written.set(socket, (commands = opened));
        socket.once('close', () => opened.forEach((command) => command.onLost()));
      }
      const mine = commands;
      mine.add(this);
      const done = () => mine.delete(this);
      this.promise.then(done, done);
      return super.toWritable(socket);
    }
  };
}

/**
 * The client of the node that has the call's key. In a cluster whose slots are not known yet, it waits for them.
 *
 * @param {any} client
 * @param {any} command
 * @param {Call} call
 * @param {number} patienceMs
 */
async function owner(client, command, call, patienceMs) {
  if (!client.isCluster) return client;
  command.keyWords = call.keys;
  if (client.status !== 'ready') {
    await new Promise((resolve, reject) => {
      const cancel = later(patienceMs, () => end(() => reject(new NoReply('the cluster is not ready'))));
      const ready = () => end(() => resolve(undefined));
      const end = (/** @type {() => void} */ outcome) => {
        cancel();
        client.off('ready', ready);
        outcome();
      };
      client.once('ready', ready);
      if (client.status === 'wait') client.connect().catch(() => {});
    });
  }
  const address = client.slots[command.getSlot()]?.[0];
  const node = client.nodes('master').find((/** @type {any} */ { options }) => `${options.host}:${options.port}` === address);
  if (!node) throw new NoReply(`no client of the cluster is connected to ${address}`);
  return node;
}

/**
 * A connection for one call. It is not opened again when it is lost: the call would be sent again.
 *
 * @param {any} node
 * @param {number} patienceMs
 * @param {object} [options]
 */
function alone(node, patienceMs, options) {
  const own = node.duplicate({
    autoResendUnfulfilledCommands: false,
    commandTimeout: undefined,
    connectTimeout: Math.max(1, Math.ceil(patienceMs)),
    enableOfflineQueue: true,
    lazyConnect: true,
    maxRetriesPerRequest: 0,
    monitor: false,
    readOnly: false,
    retryStrategy: null,
    sentinelRetryStrategy: null,
    socketTimeout: undefined,
    ...options,
  });
  // The call itself fails with the error, too.
  own.on('error', () => {});
  return own;
}

/**
 * @param {any} own
 * @param {number} patienceMs
 */
async function opened(own, patienceMs) {
  let cancel = () => {};
  const late = new Promise((_, reject) => {
    cancel = later(patienceMs, () => reject(new NoReply(`no connection within ${Math.ceil(patienceMs)} ms`)));
  });
  try {
    await Promise.race([own.connect(), late]);
  } finally {
    cancel();
  }
}
