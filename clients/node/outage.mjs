// What an Express app with a limit serves while its Redis answers, hangs, cannot be reached, refuses connections, has lost its module or
// its password, and is back. Prints a table.
//
// `node outage.mjs [SECONDS] [open|closed|RATE]`: the seconds of each part (5), and `onDown` (open; a rate such as 20/s is a Gcra). It
// starts a server of its own: REDIS_RL_SERVER (redis-server) with the module REDIS_RL_MODULE (target/release/libredis_rl.so).
import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { Agent, get } from 'node:http';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const FILE = fileURLToPath(import.meta.url);
const HOST = '127.0.0.1';
const LANES = 50;
const [seconds = 5, onDown = 'open', port] = process.argv.slice(2);
if (port) await serve();
else await measure();

/** The app, a process of its own. */
async function serve() {
  const { default: express } = await import('express');
  const { Redis } = await import('ioredis');
  const { Gcra, Limits } = await import('./dist/index.js');
  const { rateLimit } = await import('./dist/express.js');
  const redis = new Redis({ host: HOST, port: Number(port) }).on('error', () => {});
  const limits = new Limits(redis, { onDown: onDown.includes('/') ? new Gcra(onDown) : onDown });
  const app = express();
  app.set('env', 'test');
  app.use(rateLimit(limits.limit('api', new Gcra('1000000/s'))));
  app.get('/', (request, response) => response.send('hello'));
  const http = app.listen(0, HOST, () => process.send(http.address().port));
}

async function measure() {
  const folder = mkdtempSync(join(tmpdir(), 'redis-rl-'));
  const redisPort = await freePort();
  const app = fork(FILE, [seconds, onDown, redisPort], { execArgv: ['--no-warnings'] });
  let server;
  const start = async (...options) => {
    const module = process.env.REDIS_RL_MODULE ?? fileURLToPath(new URL('../../target/release/libredis_rl.so', import.meta.url));
    const all = ['--port', redisPort, '--bind', HOST, '--dir', folder, '--save', '', '--tcp-backlog', '1', ...options];
    if (!options.includes('--enable-module-command')) all.push('--loadmodule', module);
    server = spawn(process.env.REDIS_RL_SERVER ?? 'redis-server', all, { stdio: 'ignore' });
    while (!(await reached(redisPort))) await sleep(20);
  };
  const stop = async () => {
    server.kill('SIGKILL');
    await once(server, 'exit');
  };
  const fillers = [];
  try {
    const [appPort] = await once(app, 'message');
    console.log(`onDown: ${onDown}, ${LANES} requests at the same time, Node.js ${process.version}\n`);
    console.log('| Redis | requests a second | decided by Redis | answers | slowest |\n|---|---|---|---|---|');
    await start();
    await load(appPort, 'answers');
    server.kill('SIGSTOP');
    await load(appPort, 'hangs (SIGSTOP)');
    // What the kernel accepts for it is full, so that nothing answers a new connection.
    for (let n = 0; n < 8; n++) fillers.push(connect(redisPort, HOST).on('error', () => {}));
    await load(appPort, 'cannot be reached');
    for (const socket of fillers) socket.destroy();
    server.kill('SIGCONT');
    await stop();
    await load(appPort, 'refuses connections');
    await start('--enable-module-command', 'no');
    await load(appPort, 'has no module');
    await stop();
    await start('--requirepass', 'changed');
    await load(appPort, 'has another password');
    await stop();
    await start();
    await load(appPort, 'is back');
  } finally {
    for (const socket of fillers) socket.destroy();
    app.kill('SIGKILL');
    server?.kill('SIGKILL');
    rmSync(folder, { recursive: true });
  }
}

async function load(appPort, what) {
  const agent = new Agent({ keepAlive: true, maxSockets: LANES });
  const statuses = {};
  let [count, decided, slowest] = [0, 0, 0];
  const begin = performance.now();
  const end = begin + seconds * 1000;
  await Promise.all(Array.from({ length: LANES }, async () => {
    while (performance.now() < end) {
      const sent = performance.now();
      const [response] = await once(get({ agent, host: HOST, port: appPort, path: '/' }), 'response');
      response.resume();
      await once(response, 'end');
      statuses[response.statusCode] = (statuses[response.statusCode] ?? 0) + 1;
      decided += response.headers.ratelimit ? 1 : 0;
      slowest = Math.max(slowest, performance.now() - sent);
      count++;
    }
  }));
  agent.destroy();
  const rate = Math.round((count / (performance.now() - begin)) * 1000);
  const answers = Object.entries(statuses).map(([status, times]) => `${status}: ${times}`).join(', ');
  console.log(`| ${what} | ${rate} | ${Math.round((100 * decided) / count)} % | ${answers} | ${Math.round(slowest)} ms |`);
}

async function reached(redisPort) {
  const socket = connect(redisPort, HOST);
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

async function freePort() {
  const listener = createServer().listen(0, HOST);
  await once(listener, 'listening');
  const { port } = listener.address();
  await once(listener.close(), 'close');
  return port;
}
