#!/usr/bin/env node
// The command redis-rl.
import { parseArgs } from 'node:util';
import { build, call, modulePath, ReplyError, Server, ServerError } from './index.js';

const usage = `redis-rl: a server with redis-rl, for trials and tests, not for production
  redis-rl serve [--port PORT] [--dir FOLDER] [--server PATH] [--module PATH]   start a server, until Ctrl-C
  redis-rl call [--port PORT | --url URL] RL.GCRA user:7 10 60                   call a command
  redis-rl module-path                                                           print the path of the module, for loadmodule
  redis-rl --version`;
const labels = ['granted', 'limit', 'remaining', 'wait_ms', 'reset_ms'];

// A reply as lines. `labelled`: five integers are those of a decision.
function shown(reply, labelled, indent = '') {
  if (!Array.isArray(reply)) return String(reply ?? '(nil)').replace(/^/gm, indent);
  if (labelled && reply.length === 5 && reply.every(Number.isInteger)) {
    if (indent) return indent + reply.map((item, n) => `${labels[n]} ${item}`).join(', ');
    return reply.map((item, n) => labels[n].padEnd(10) + item).join('\n');
  }
  return reply.map((item) => shown(item, labelled, indent + (Array.isArray(item) ? '  ' : ''))).join('\n') || `${indent}(empty)`;
}

async function serve({ port, ...options }) {
  const stopped = new Promise((resolve) => ['SIGINT', 'SIGTERM', 'SIGHUP'].map((name) => process.on(name, resolve)));
  // Like `make run`: port 6379, or the next free one.
  let server;
  for (let chosen = port ?? 6379; !server; chosen++) {
    server = await new Server({ ...options, port: Number(chosen) }).start().catch((error) => {
      if (port || chosen === 6398 || !error.message.includes(' is in use')) throw error;
      console.log(error.message, 'Trying the next one.');
    });
  }
  const withPort = server.port === 6379 ? '' : ` --port ${server.port}`;
  console.log(`A server with redis-rl ${build.version} listens on ${server.url}: for trials and tests, not for production.
In another terminal, try:

  npx redis-rl call${withPort} RL.GCRA user:7 10 60      # ten at once, then one every 6 seconds
  npx redis-rl call${withPort} RL.SLIDE partner 5 1      # never more than 5 in any second
  npx redis-rl call${withPort} RL.HELP

Ctrl-C stops the server, and ${options.dir ? 'saves' : 'removes'} its data.`);
  const failure = server.wait().then(() => new ServerError('The server has ended.'));
  const first = await Promise.race([failure, stopped]);
  if (first instanceof ServerError) throw first;
  await server.stop();
}

const [name, ...rest] = process.argv.slice(2);
// The options of `call` stand before the command, whose own arguments may look like options.
let from = 0;
while (name === 'call' && rest[from]?.startsWith('--')) from += rest[from].includes('=') ? 1 : 2;
const words = rest.slice(from);
const options = (args, ...names) =>
  parseArgs({ args, options: Object.fromEntries(names.map((option) => [option, { type: 'string' }])) }).values;
try {
  if (name === 'serve') {
    await serve(options(rest, 'port', 'dir', 'server', 'module'));
  } else if (name === 'module-path') {
    console.log(modulePath());
  } else if (name === 'call' && words.length > 0) {
    const { port = '6379', url = `redis://127.0.0.1:${port}` } = options(rest.slice(0, from), 'url', 'port');
    const reply = await call(url, ...words).catch((error) => {
      if (error instanceof ReplyError) throw error;
      throw new Error(`No answer from ${url}: ${error.message}. \`redis-rl serve\` starts a server.`);
    });
    console.log(shown(reply, /^RL\./i.test(words[0])));
  } else {
    console.log(name === '--version' ? `redis-rl ${build.version}, ${build.server}` : usage);
    process.exitCode = name === '--version' || name === '--help' ? 0 : 2;
  }
} catch (error) {
  console.error(`redis-rl: ${error.message}`);
  process.exitCode = 1;
}
