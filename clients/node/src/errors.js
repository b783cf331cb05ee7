/** @typedef {import('./decision.js').Decision} Decision */
/** @typedef {import('./decision.js').AllDecision} AllDecision */

/** Any error of this package. */
export class RateLimitError extends Error {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An argument that the server would refuse. Thrown before a call is made. */
export class InvalidArgument extends RateLimitError {}

/** The policy or the name of a limit is wrong. */
export class InvalidLimit extends InvalidArgument {}

/** A key is text or bytes, and not empty. */
export class InvalidKey extends InvalidArgument {}

/** A cost is a whole number from 1 to 1e12. */
export class InvalidCost extends InvalidArgument {}

/** A wait is a duration of at most a day. */
export class InvalidWait extends InvalidArgument {}

/** An id has 1 to 64 bytes. */
export class InvalidId extends InvalidArgument {}

/** The server has refused the arguments of a call, or the client's password or rights. */
export class Refused extends RateLimitError {}

/** The call was denied. */
export class RateLimited extends RateLimitError {
  /** @param {Decision | AllDecision} decision */
  constructor(decision) {
    const { wait } = decision;
    super(`the limit ${decision.name} is reached; retry ${wait === null ? 'never' : `in ${wait} s`}`);
    /** What the server decided. */
    this.decision = decision;
    /** The status for HTTP. */
    this.status = 429;
  }

  /** Seconds until the same call would be granted; null means never. */
  get retryAfter() {
    return this.decision.wait;
  }

  /** The header fields for HTTP. */
  headers() {
    return this.decision.headers();
  }
}

/** A lease has lapsed, or its key was deleted. Another holder may have its units. */
export class LeaseLost extends RateLimitError {
  /**
   * @param {string} name
   * @param {string} id
   * @param {ErrorOptions} [options]
   */
  constructor(name, id, options) {
    super(`the lease ${id} of ${name} is lost`, options);
    this.id = id;
  }
}

/** The server gave no decision: no connection, no reply in time, or an error such as LOADING, READONLY or OOM. */
export class Down extends RateLimitError {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    /** The status for HTTP. */
    this.status = 503;
  }
}

/** The server does not know the command: it has not loaded the module, or one that is too old for this package. */
export class NoModule extends RateLimitError {}

/** The key holds something else: a list, or a limiter of another algorithm. */
export class WrongType extends RateLimitError {}

/** The reply has another shape than that of the module. */
export class UnexpectedReply extends RateLimitError {}

/**
 * No reply has come: the server may have executed the command, or not. Adapters throw it, and callers see it as the cause of
 * `Down`.
 */
export class NoReply extends Error {
  /**
   * @param {string} message
   * @param {ErrorOptions} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = 'NoReply';
  }
}

/** The server refuses for now, and has not executed the command. */
const REFUSED_FOR_NOW = /^(READONLY|LOADING|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|UNBLOCKED|MASTERDOWN|NOREPLICAS|BUSY)\b/;

/**
 * Whether an error is a reply of the server. Such a reply begins with a code in capital letters; errors of connections do not.
 *
 * @param {unknown} error
 * @returns {boolean}
 */
export function isReply(error) {
  if (!(error instanceof Error) || error instanceof NoReply || 'errno' in error || 'syscall' in error) return false;
  return /^[A-Z][A-Z0-9_]+( |$)/.test(error.message);
}

/**
 * Whether the server has refused a call, and may accept it soon.
 *
 * @param {unknown} error
 */
export function isRefusedForNow(error) {
  return error instanceof Error && isReply(error) && REFUSED_FOR_NOW.test(error.message);
}

/**
 * The error of this package for an error of a client library.
 *
 * @param {unknown} error
 * @param {string} keys the keys of the call
 * @returns {RateLimitError}
 */
export function translated(error, keys) {
  if (error instanceof RateLimitError) return error;
  const message = error instanceof Error ? error.message : String(error);
  const options = { cause: error };
  if (!isReply(error)) return new Down(`the server did not answer: ${message}`, options);
  if (/^WRONGTYPE /.test(message)) return new WrongType(`${message}: ${keys}`, options);
  // These do not heal by themselves: with `onDown: 'open'`, nothing would be limited any more.
  if (/^(NOPERM|NOAUTH|WRONGPASS)\b/.test(message)) return new Refused(message, options);
  if (/^CROSSSLOT /.test(message)) return new Refused(`${message}: in a cluster, give the keys one hash tag`, options);
  if (/^ERR unknown (command|option|algorithm|subcommand)/i.test(message)) {
    return new NoModule(`${message}: the server needs the module redis-rl, at least in the version of this package`, options);
  }
  if (/^ERR (\w+ must |the result is too large|wrong number of arguments)/.test(message)) return new Refused(message, options);
  return new Down(`the server gave no decision: ${message}`, options);
}
