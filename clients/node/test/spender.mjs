// A process that spends units of a key from a wallet, for wallet.test.mjs. It reports each unit after it has spent it.
import { createClient } from 'redis';
import { Redis } from 'ioredis';
import { Limits, Slide } from '../dist/index.js';

const [library, path, rate, batch] = process.argv.slice(2);
const client = library === 'ioredis' ? new Redis({ path }) : await createClient({ socket: { path } }).connect();
const limits = new Limits(client, { timeout: 20, connectTimeout: 20 });
const wallet = limits.wallet(limits.limit('shared', new Slide(rate)), { batch: Number(batch), idle: 60 });

// All processes begin together.
process.send({ ready: true });
await new Promise((go) => process.once('message', go));
for (let denied = 0; denied < 3; ) {
  const cost = 1 + Math.floor(Math.random() * 4);
  const decisions = await Promise.all([wallet.take('key', cost), wallet.take('key', 1)]);
  const spent = decisions.reduce((sum, { granted }) => sum + granted, 0);
  denied = decisions.some(({ allowed }) => allowed) ? 0 : denied + 1;
  await new Promise((done) => process.send({ spent }, done));
}
await limits.close();
await new Promise((done) => process.send({ closed: true }, done));
process.exit();
