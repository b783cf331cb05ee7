/** Any error of this package. */
export class RateLimitError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An argument is wrong. The server has refused it with `ERR`, or one of the five classes below says before a call what is wrong. */
export class InvalidArgument extends RateLimitError {}

/** A policy, the name of a limit or an option is wrong. */
export class InvalidLimit extends InvalidArgument {}

/** A key is text, bytes or an integer, and not empty. The keys of one call must have one slot in a cluster. */
export class InvalidKey extends InvalidArgument {}

/** A cost is a whole number from 1 to 1e12. */
export class InvalidCost extends InvalidArgument {}

/** A wait is a duration of at most a day. */
export class InvalidWait extends InvalidArgument {}

/** An id has 1 to 64 bytes. */
export class InvalidId extends InvalidArgument {}

/** The lease of a block has ended. Another holder may have its places. */
export class LeaseLost extends RateLimitError {}

/** The program has closed this wallet, or these limits. */
export class Closed extends RateLimitError {}

/** The server gave no decision. `onDown` decides about such calls. */
export class Unavailable extends RateLimitError {
  /** Whether the server may have executed the call. */
  sent: boolean;
  /** The connection was lost, or the server has ended a wait: the call may be repeated if it has an id. @internal */
  lost: boolean;
  /** The status for HTTP. */
  readonly status = 503;

  constructor(message: string, { sent = false, lost = false, ...options }: ErrorOptions & { sent?: boolean; lost?: boolean } = {}) {
    super(message, options);
    [this.sent, this.lost] = [sent, lost];
  }
}

/** The server has no module redis-rl, or one that is too old for this call. */
export class NoModule extends Unavailable {}

/** The server has refused the password or the rights of the client. */
export class NotAllowed extends Unavailable {}

/** The key holds something else: a list, or a limiter of another algorithm. */
export class WrongType extends RateLimitError {}

/** The reply has another shape than that of the module. */
export class UnexpectedReply extends RateLimitError {}

/** Whether an error is a reply of the server. Such a reply begins with a code in capital letters; errors of connections do not. */
export function isReply(error: unknown): error is Error {
  if (!(error instanceof Error) || error instanceof RateLimitError || 'errno' in error || 'syscall' in error) return false;
  return /^[A-Z][A-Z0-9_]+( |$)/.test(error.message);
}

/** What to do about a reply of the server. */
const ADVICE: Record<string, string> = {
  BUSY: 'a script is running on it',
  CLUSTERDOWN: 'the cluster has slots that no node serves',
  LOADING: 'it is loading its data',
  MASTERDOWN: 'it is a replica without its primary',
  MISCONF: 'it cannot save its data: look into its log',
  NOREPLICAS: 'it has too few replicas to accept writes',
  OOM: 'it has reached maxmemory: raise it, or let it evict keys',
  READONLY: 'it is a replica: connect to the primary',
  TRYAGAIN: 'the slot of the keys is being moved',
};

/** The error of this package for a reply of the server that is an error, of a call with these keys. */
export function translated(error: Error, keys: string): RateLimitError {
  const { message } = error;
  const options = { cause: error };
  const code = message.split(' ', 1)[0];
  if (code === 'WRONGTYPE') return new WrongType(`${message}: ${keys}`, options);
  if (code === 'CROSSSLOT') {
    const advice = "in a cluster, give the keys one hash tag, and the policy keys of a Named that of the call's key";
    return new InvalidKey(`${message}: ${advice}`, options);
  }
  if (/^(NOAUTH|WRONGPASS|NOPERM)$/.test(code)) {
    return new NotAllowed(`the server refuses the client: check its password and its ACL rights: ${message}`, options);
  }
  if (/^ERR unknown command/i.test(message)) {
    return new NoModule(
      `the server has no module redis-rl, or one that is too old: load it by \`loadmodule\` in the server's configuration: ${message}`,
      options,
    );
  }
  // With too many waiting calls, the server has decided nothing.
  if (code === 'ERR' && !message.includes('too many waiting calls')) return new InvalidArgument(message, options);
  return new Unavailable(`the server gives no decision: ${code in ADVICE ? `${ADVICE[code]}: ` : ''}${message}`, options);
}

export function messageOf(error: unknown) {
  return error instanceof Error ? error.message : String(error);
}
