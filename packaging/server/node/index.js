// Starts a Valkey server with the rate limiter redis-rl, for trials and tests, and makes sure that it ends.
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { call, ReplyError } from './connection.js';

export { call, ReplyError };

const file = (name) => fileURLToPath(new URL(name, import.meta.url));
/** What the package was built for: version, server, machine, glibc. */
export const build = JSON.parse(readFileSync(file('build.json'), 'utf8'));

/** The server can't be started. The message says why. */
export class ServerError extends Error {}

// The path of a file of the package, if this machine can run it.
function packed(name) {
  const needs =
    `the server in this package is for Linux on ${build.machine} with glibc ${build.glibc} or newer. Name others that ` +
    'run here: --server PATH --module PATH, or REDIS_RL_SERVER and REDIS_RL_MODULE.';
  const machine = { x64: 'x86_64', arm64: 'aarch64' }[process.arch] ?? process.arch;
  if (process.platform !== 'linux' || machine !== build.machine) {
    throw new ServerError(`This is ${process.platform} on ${machine}, and ${needs}`);
  }
  process.report.excludeNetwork = true;
  const libc = process.report.getReport().header.glibcVersionRuntime;
  if (!libc) throw new ServerError(`This system has no glibc (Alpine has musl), and ${needs}`);
  const [[major, minor], [least, lesser]] = [libc, build.glibc].map((text) => text.split('.').map(Number));
  if (major < least || (major === least && minor < lesser)) {
    throw new ServerError(`This system has glibc ${libc}, which is too old: ${needs}`);
  }
  return file(name);
}

/** The path of the module, for `loadmodule` of another server. */
export const modulePath = () => process.env.REDIS_RL_MODULE || packed('libredis_rl.so');

export class Server {
  #options;
  #watcher;
  #said = '';

  /**
   * `port` is 0 for a free one, which is the default, or null for a socket only. `dir` keeps the server's data in this folder.
   * `server` and `module` name others than those of the package. `arguments` are the server's own: ['--maxmemory', '100mb'].
   * @param {{ port?: number | null, dir?: string, server?: string, module?: string, arguments?: string[] }} [options]
   */
  constructor(options = {}) {
    this.#options = options;
  }

  async start() {
    if (this.#watcher) throw new ServerError('This server has been started already.');
    const { port = 0, dir, server = process.env.REDIS_RL_SERVER || packed('valkey-server'), module = modulePath() } = this.#options;
    const args = [file('watch.sh'), dir ? path.resolve(dir) : '', port === 0 ? 'any' : String(port ?? 0), server];
    args.push('--save', dir ? '60 1' : '', '--loadmodule', path.resolve(module), ...(this.#options.arguments ?? []));
    const watcher = (this.#watcher = spawn('sh', args, { stdio: ['pipe', 'pipe', 'inherit'], detached: true }));
    watcher.ended = new Promise((resolve) => watcher.on('close', resolve).on('error', resolve));
    watcher.stdin.on('error', () => {});
    this.#said = '';
    const said = new Promise((resolve) => {
      watcher.stdout.setEncoding('utf8').on('data', (text) => (this.#said += text).includes('\n') && resolve());
    });
    await Promise.race([said, watcher.ended]);
    const ready = /^ready (\d+) (.*)\n/.exec(this.#said);
    if (!ready) {
      await watcher.ended;
      this.#watcher = undefined;
      throw new ServerError(`The server did not start. ${this.#said.trimEnd()}`);
    }
    [this.port, this.folder, this.socket] = [Number(ready[1]) || null, ready[2], `${ready[2]}/socket`];
    // It does not keep the process alive, and ends with it.
    for (const handle of [watcher, watcher.stdin, watcher.stdout]) handle.unref();
    return this;
  }

  /** Ends the server, and waits until its folder is gone. */
  async stop() {
    this.#watcher?.stdin.end('\n');
    await this.wait();
    this.#watcher = undefined;
  }

  /** Waits until the server ends by itself. */
  async wait() {
    for (const handle of [this.#watcher, this.#watcher?.stdout]) handle?.ref();
    await this.#watcher?.ended;
  }

  /** The address for a client: redis://127.0.0.1:<port>, or unix://<path>. */
  get url() {
    return this.port ? `redis://127.0.0.1:${this.port}` : `unix://${encodeURI(this.socket)}`;
  }

  /** Calls a command on a new connection: `server.call('RL.GCRA', 'user:7', 10, 60)`. */
  call(...words) {
    return call(`unix://${encodeURI(this.socket)}`, ...words);
  }

  /** Removes all keys, and what `RL.TOP` has counted. */
  async flush() {
    await this.call('FLUSHALL');
    await this.call('RL.TOP', 'RESET');
  }
}

/** Starts a server, and returns it. */
export const startServer = (options) => new Server(options).start();
