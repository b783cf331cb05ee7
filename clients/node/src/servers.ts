import { performance } from 'node:perf_hooks';
import { Breaker } from './breaker.js';
import { nameOf, type Word } from './checks.js';
import { type Call, type Client, type Connection, type Node, ofKey } from './clients/client.js';
import { Late, limited, pause } from './clock.js';
import { isReply, messageOf, NotAllowed, translated, Unavailable } from './errors.js';

/** How often a call follows a redirection. */
const MOST_REDIRECTIONS = 5;
/** Errors by which the server ends a call that waits: a slot moves, or a replica takes over. */
const ENDS_A_WAIT = /^(UNBLOCKED|READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|TRYAGAIN|NOREPLICAS|BUSY)\b/;
/** The pause before a call is repeated, at first and at most. */
const FIRST_PAUSE_MS = 20;
const LONGEST_PAUSE_MS = 200;

/** What this package has of one server: its breaker, and the connection for calls that do not wait. */
class Server {
  readonly breaker = new Breaker();
  connection?: Connection;
  opening?: Promise<Connection>;
  /** The calls on each connection. */
  readonly calls = new Map<Connection, number>();
  /** Whether the limits are closed. A block that ends later gives back on a connection of its own, which is closed after that. */
  closed = false;

  /**
   * The connection to this server, which is opened if there is none, or if it is known to be closed. It is opened once for all calls
   * that need it, so the times are not those of one of them.
   */
  async connected(node: Node, connectMs: number, replyMs: number): Promise<Connection> {
    if (this.connection?.isOpen()) return this.connection;
    this.drop(this.connection);
    this.opening ??= node.open(connectMs, replyMs).then((opened) => {
      if (this.opening === undefined) opened.close();
      else this.connection = opened;
      return opened;
    }).finally(() => (this.opening = undefined));
    return this.opening;
  }

  /** Closes a connection when its calls have ended. It gets no other calls. */
  drop(connection: Connection | undefined) {
    if (connection && this.connection === connection) this.connection = undefined;
    if (connection && !this.calls.has(connection)) connection.close();
  }

  begin(connection: Connection) {
    this.calls.set(connection, (this.calls.get(connection) ?? 0) + 1);
  }

  end(connection: Connection) {
    const left = (this.calls.get(connection) as number) - 1;
    if (left) return void this.calls.set(connection, left);
    this.calls.delete(connection);
    if (this.closed && this.connection === connection) this.connection = undefined;
    if (this.connection !== connection) connection.close();
  }

  close() {
    for (const connection of new Set([...this.calls.keys(), ...(this.connection ? [this.connection] : [])])) connection.close();
    this.connection = this.opening = undefined;
  }
}

/** What a call got. `before`: it was sent before, and may have been executed then, without a reply. */
export interface Answer {
  reply: unknown;
  before: boolean;
}

/** How a call waits in line, on a connection of its own. `joined` is called when it does. */
interface Waiting {
  waitMs: number;
  signal: AbortSignal;
}

/** Sends calls to the servers of a client, on connections of its own. */
export class Servers {
  readonly #forget;
  readonly #servers = new Map<string, Server>();
  /** For the search of a server in a cluster. */
  readonly #searching = new Breaker();
  #search?: Promise<unknown>;
  #closed = false;

  constructor(readonly client: Client, readonly timeoutMs: number, readonly connectMs: number) {
    this.#forget = client.onClose(() => {
      for (const server of this.#servers.values()) server.drop(server.connection);
    });
  }

  /** Closes all connections, for good. */
  close() {
    this.#forget();
    this.#closed = true;
    for (const server of this.#servers.values()) server.close();
  }

  /**
   * Sends a call. With `repeat`, it is sent again when the connection is lost. With `ends`, it is one that gives back, settles or
   * renews: it is sent also if the server was found down, but then it does not wait for a connection as long as others. It takes
   * `mostMs` in all, or less.
   */
  async send(call: Call, options: { repeat?: boolean; ends?: boolean; mostMs?: number } = {}): Promise<Answer> {
    const { repeat = false, ends = false, mostMs = Infinity } = options;
    const isDown = [...this.#servers.values()].some(({ breaker }) => breaker.isDown);
    const ms = Math.min(mostMs, ends && isDown ? this.timeoutMs : this.timeoutMs + this.connectMs);
    const deadline = performance.now() + ms;
    return this.#repeated(deadline, repeat, (before) => this.#send(call, before || ends, deadline));
  }

  /** Sends a call that gives back, settles or renews. */
  async end(name: string, key: Word, ...words: Word[]) {
    return this.send(ofKey(name, key, ...words), { repeat: true, ends: true });
  }

  /**
   * Sends a call that may wait in line: at first without `BLOCK` and perhaps with `id`, and if that is not final, with `BLOCK` and
   * `waitId` on a connection of its own, after `onBlock`. It goes on waiting when the server ends the wait because a slot moves or a
   * replica takes over, and when the connection is lost, until its own time is over: by the id it is charged once.
   */
  async inLine(
    call: Call,
    isFinal: (reply: unknown) => boolean,
    options: { waitMs: number; id?: string; waitId: string; signal: AbortSignal; onBlock: () => void },
  ): Promise<Answer> {
    const { waitMs, id, waitId, signal, onBlock } = options;
    const end = performance.now() + waitMs;
    const asked = await this.send(withWords(call, id === undefined ? [] : ['ID', id]), { repeat: id !== undefined });
    if (isFinal(asked.reply) || end - performance.now() < 1) return asked;
    const deadline = end + this.timeoutMs + this.connectMs;
    return this.#repeated(deadline, true, async (before) => {
      signal.throwIfAborted();
      const left = Math.max(1, Math.ceil(end - performance.now()));
      onBlock();
      const waits = withWords(call, ['ID', waitId, 'BLOCK', `${left}ms`]);
      return this.#send(waits, before, deadline, { waitMs: left, signal });
    });
  }

  /** Makes a call until it has a reply; if it may not `repeat`, once. `before`: it was made before, and the connection was lost. */
  async #repeated(deadline: number, repeat: boolean, attempt: (before: boolean) => Promise<unknown>): Promise<Answer> {
    let before = false;
    for (let wait = FIRST_PAUSE_MS; ; wait = Math.min(2 * wait, LONGEST_PAUSE_MS)) {
      try {
        return { reply: await attempt(before), before };
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
        before ||= error.lost;
        if (!repeat || !before || performance.now() + wait >= deadline) {
          error.sent ||= before;
          throw error;
        }
        await pause(wait);
      }
    }
  }

  async #send(call: Call, always: boolean, deadline: number, wait?: Waiting) {
    return this.#redirected(call, always, deadline, async (node, server, entered, asking) => {
      const replyMs = this.timeoutMs + (wait?.waitMs ?? 0);
      const connection = await this.#open(node, server, entered, call, deadline, replyMs, wait?.signal);
      server.begin(connection);
      let done = false;
      let ms = replyMs;
      try {
        const send = ({ name, args, keys }: Call) => {
          if (!wait) ms = left(replyMs, deadline);
          return limited(ms, wait?.signal, connection.send([name, ...args], keys[0], asking));
        };
        const reply = await send(call).catch((error) => {
          if (call.otherwise && isReply(error) && error.message.startsWith('NOPOLICY')) return send(call.otherwise);
          throw error;
        });
        done = true;
        server.breaker.succeeded();
        return reply;
      } catch (error) {
        if (wait?.signal.aborted) throw wait.signal.reason;
        const failure = this.#failed(error, server, entered, connection, ms === replyMs);
        // Nothing was charged.
        const goesOn = wait && isReply(failure) && ENDS_A_WAIT.test(failure.message);
        throw goesOn ? new Unavailable(`the server has ended the wait: ${failure.message}`, { lost: true }) : failure;
      } finally {
        if (wait && !done && connection.endWait) {
          const other = server.connected(node, this.connectMs, this.timeoutMs);
          other.then((one) => connection.endWait?.(one, call.keys[0])).catch(() => {});
        }
        server.end(connection);
      }
    });
  }

  /** Finds the server of a call, and follows redirections: a server that redirects a call has not executed it. */
  async #redirected(
    call: Call,
    always: boolean,
    deadline: number,
    action: (node: Node, server: Server, entered: number, asking: boolean) => Promise<unknown>,
  ) {
    if (this.client.isClosed()) throw new Unavailable('the program has closed the client');
    const [key] = call.keys;
    let node = this.client.locate(key) ?? (await this.#find(key, always, deadline));
    for (let asking = false, redirections = 0; ; redirections++) {
      const server = this.#server(node);
      const entered = server.breaker.enter(always);
      try {
        return await action(node, server, entered, asking);
      } catch (error) {
        const [, kind, address] = /^(MOVED|ASK) \d+ (\S+)/.exec(isReply(error) ? error.message : '') ?? [];
        if (!kind) throw isReply(error) ? translated(error, call.keys.map(nameOf).join(', ')) : error;
        if (redirections === MOST_REDIRECTIONS || performance.now() >= deadline) {
          throw new Unavailable(`the servers of the cluster redirect the call to each other: ${messageOf(error)}`, { cause: error });
        }
        asking = kind === 'ASK';
        const other = asking ? this.client.at(address) : undefined;
        if (!other) await limited(left(this.connectMs, deadline), undefined, this.#searched(key)).catch(() => {});
        node = other ?? this.client.locate(key) ?? node;
      } finally {
        server.breaker.left(entered);
      }
    }
  }

  /** The connection for a call: the one that all calls share, or one of its own for a call that waits, which has a signal. */
  async #open(node: Node, server: Server, entered: number, call: Call, deadline: number, replyMs: number, signal?: AbortSignal) {
    const ms = left(this.connectMs, deadline);
    const made = signal ? node.open(this.connectMs, replyMs) : server.connected(node, this.connectMs, replyMs);
    try {
      return await limited(ms, signal, made);
    } catch (error) {
      if (signal) made.then((late) => late.close(), () => {});
      if (signal?.aborted) throw signal.reason;
      if (error instanceof TypeError) throw error;
      const reply = isReply(error) ? translated(error, '') : undefined;
      const failure = reply instanceof NotAllowed ? reply : unreachable('no connection to the server', error);
      if (countsAgainst(error, ms === this.connectMs)) server.breaker.failed(entered, failure);
      // In a cluster, another server may have taken over.
      void this.#searched(call.keys[0]);
      throw failure;
    }
  }

  /** The error for a call that was sent. `full`: the server had all the time for its reply that it may take. */
  #failed(error: unknown, server: Server, entered: number, connection: Connection, full: boolean) {
    if (isReply(error)) {
      server.breaker.succeeded();
      // A replica: by the next connection, the client may find the primary.
      if (error.message.startsWith('READONLY')) server.drop(connection);
      return error;
    }
    if (error instanceof TypeError || error instanceof RangeError) return error;
    server.drop(connection);
    // valkey-glide has time-outs of its own.
    const late = error instanceof Late || (error instanceof Error && error.name === 'TimeoutError');
    const failure = unreachable(late ? 'no reply from the server' : 'the connection to the server was lost', error, true, !late);
    if (late ? countsAgainst(error, full) : entered) server.breaker.failed(entered, failure);
    return failure;
  }

  async #find(key: Word, always: boolean, deadline: number): Promise<Node> {
    const entered = this.#searching.enter(always);
    const ms = left(this.connectMs, deadline);
    const error = await limited(ms, undefined, this.#searched(key)).catch((late) => late);
    const node = this.client.locate(key);
    if (node) {
      this.#searching.succeeded();
      return node;
    }
    const failure = unreachable('no server of the cluster was found', error);
    if (countsAgainst(error, ms === this.connectMs)) this.#searching.failed(entered, failure);
    this.#searching.left(entered);
    throw failure;
  }

  /** Lets the client search, once at a time for all calls. Returns the error, if there is one. */
  #searched(key: Word): Promise<unknown> {
    this.#search ??= this.client.search(key, this.connectMs).then(() => undefined, (error) => error)
      .finally(() => (this.#search = undefined));
    return this.#search;
  }

  #server({ name }: Node) {
    let server = this.#servers.get(name);
    if (!server) this.#servers.set(name, (server = new Server()));
    server.closed ||= this.#closed;
    return server;
  }
}

/** How much of this time a call has until its deadline. */
const left = (ms: number, deadline: number) => Math.max(1, Math.min(ms, deadline - performance.now()));

/**
 * Whether an error says that a server is down. If the call itself had only little time left, and not the `full` time that a server may
 * take, its end says nothing: the server may be well, and other calls must not be kept from it.
 */
const countsAgainst = (error: unknown, full: boolean) => full || !(error instanceof Late);

/** The error for a call that has got no reply. */
function unreachable(what: string, cause: unknown, sent = false, lost = false) {
  const message = `${what}: ${messageOf(cause)}; does the server run, and is its address right?`;
  return new Unavailable(message, { cause, sent, lost });
}

function withWords({ args, otherwise, ...rest }: Call, words: Word[]): Call {
  return { ...rest, args: words.length ? [...args, ...words] : args, otherwise: otherwise && withWords(otherwise, words) };
}
