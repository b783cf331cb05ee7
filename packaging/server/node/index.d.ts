export interface ServerOptions {
  /** 0 for a free port, which is the default, or null for a socket only. */
  port?: number | null;
  /** The folder in which the server keeps its data. */
  dir?: string;
  /** Another server than that of the package. */
  server?: string;
  /** Another module than that of the package. */
  module?: string;
  /** Arguments of the server: ['--maxmemory', '100mb']. */
  arguments?: string[];
}

export class Server {
  constructor(options?: ServerOptions);
  readonly port: number | null;
  readonly folder: string;
  readonly socket: string;
  /** The address for a client: redis://127.0.0.1:<port>, or unix://<path>. */
  readonly url: string;
  start(): Promise<this>;
  /** Ends the server, and waits until its folder is gone. */
  stop(): Promise<void>;
  /** Waits until the server ends by itself. */
  wait(): Promise<void>;
  /** Calls a command on a new connection. The reply is a number, a text, null, or an array of these. */
  call(...words: (string | number)[]): Promise<any>;
  /** Removes all keys, and what RL.TOP has counted. */
  flush(): Promise<void>;
}

/** Starts a server, and returns it. */
export function startServer(options?: ServerOptions): Promise<Server>;
/** The path of the module, for `loadmodule` of another server. */
export function modulePath(): string;
/** Calls a command of the server at this address, on a new connection. */
export function call(url: string, ...words: (string | number)[]): Promise<any>;
/** What the package was built for. */
export const build: { version: string; server: string; machine: string; glibc: string };
/** The server can't be started. The message says why. */
export class ServerError extends Error {}
/** The server has replied with an error. */
export class ReplyError extends Error {}
