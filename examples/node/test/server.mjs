// A server with the module, on a socket in a folder of its own.
import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Redis } from 'ioredis';

const BUILT = fileURLToPath(new URL('../../../target/release/libredis_rl.so', import.meta.url));
const DEADLINE_MS = 20_000;

export async function startServer() {
  const module = resolve(process.env.REDIS_RL_MODULE ?? BUILT);
  if (!existsSync(module)) throw new Error(`${module} is missing: run \`make build\``);
  const folder = await mkdtemp(join(tmpdir(), 'redis-rl-'));
  const socket = join(folder, 'server.sock');
  const log = openSync(join(folder, 'log'), 'w');
  const options = ['--port', '0', '--unixsocket', socket, '--dir', folder, '--save', '', '--loadmodule', module];
  const child = spawn(process.env.REDIS_RL_SERVER ?? 'redis-server', options, { stdio: ['ignore', log, log] });
  closeSync(log);
  const exited = new Promise((done) => child.once('exit', done).once('error', done));

  const server = {
    socket,
    child,
    async kill() {
      child.kill('SIGKILL');
      await exited;
    },
    async stop() {
      await server.kill();
      await rm(folder, { recursive: true });
    },
  };

  const deadline = Date.now() + DEADLINE_MS;
  for (;;) {
    const client = new Redis({ path: socket, lazyConnect: true, retryStrategy: null });
    client.on('error', () => {});
    const up = await client.connect().then(() => true, () => false);
    client.disconnect();
    if (up) return server;
    if (child.exitCode !== null || child.pid === undefined || Date.now() > deadline) {
      const text = await readFile(join(folder, 'log'), 'utf8');
      await server.stop();
      throw new Error(`the server did not start:\n${text}`);
    }
    await sleep(5);
  }
}
