// Tests what docs/clients.md says about clients in a real cluster of three nodes.
import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, beforeEach, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Cluster, Command } from 'ioredis';
import { createCluster } from 'redis';
import { eventually, startCluster } from '../../../clients/node/test/server.mjs';

const RECIPES = fileURLToPath(new URL('..', import.meta.url));
const PIPELINING = [false, true];
const KEYS = Array.from({ length: 60 }, (_, n) => `user:${n}`);

let cluster;
before(async () => (cluster = await startCluster()));
after(() => cluster?.stop());
beforeEach(() => Promise.all(cluster.each.map((node) => node.flushall())));

/** A command whose first argument is its key. */
class Keyed extends Command {
  getKeys() {
    return [this.args[0]];
  }
}

/** Runs `use` with a cluster client of ioredis that knows the nodes. Returns the number of calls that were redirected. */
async function ioredis(options, use) {
  const redis = new Cluster(cluster.nodes, options);
  try {
    await redis.set('known', 1);
    const before = await cluster.moved();
    await use(redis);
    return (await cluster.moved()) - before;
  } finally {
    redis.disconnect();
  }
}

test('the programs of docs/clients.md', async () => {
  const page = await readFile(join(RECIPES, '../../docs/clients.md'), 'utf8');
  const programs = [...page.matchAll(/```js\n(.*?)```/gs)].map(([, program]) => program);
  assert.equal(programs.length, 2);
  // Inside the project, because Node.js looks for packages there.
  const folder = await mkdtemp(join(RECIPES, 'node_modules/.clients-'));
  try {
    for (const [index, program] of programs.entries()) {
      const there = program.replaceAll('6379', cluster.nodes[0].port);
      const file = join(folder, `${index}.mjs`);
      await writeFile(file, `${there}\nexport { redis, reply };\n`);
      const { redis, reply } = await import(pathToFileURL(file));
      redis.disconnect();
      // Both programs use the same key.
      assert.deepEqual(reply.slice(0, 3), [1, 10, 9 - index]);
    }
  } finally {
    await rm(folder, { recursive: true });
  }
});

test('two nodes of three redirect a command in which ioredis finds no key', async () => {
  const call = (redis) => Promise.allSettled(KEYS.map((key) => redis.call('RL.GCRA', key, 10, 60)));
  const moved = await ioredis({}, async (redis) => {
    for (const { value } of await call(redis)) assert.equal(value[0], 1);
  });
  assert.ok(moved > KEYS.length / 3, `${moved}`);
  await ioredis({ enableAutoPipelining: true }, async (redis) => {
    // ioredis chooses the node of a pipeline at random.
    await eventually(async () => (await call(redis)).some(({ reason }) => /^MOVED /.test(reason?.message)));
  });
});

test('a script also finds the node, but does not wait', async () => {
  const lua = 'return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))';
  for (const enableAutoPipelining of PIPELINING) {
    await Promise.all(cluster.each.map((node) => node.flushall()));
    const moved = await ioredis({ enableAutoPipelining }, async (redis) => {
      redis.defineCommand('limiter', { numberOfKeys: 1, lua });
      const replies = await Promise.all(KEYS.map((key) => redis.limiter(key, 'RL.FIXED', 2, 3600, 'COST', 2)));
      for (const [granted] of replies) assert.equal(granted, 2);
      const [denied] = await redis.limiter(KEYS[0], 'RL.FIXED', 2, 3600, 'BLOCK', 7200);
      assert.equal(denied, 0, 'a script must not block: it is denied at once');
    });
    assert.equal(moved, 0);
  }
});

test('a command can name any number of keys, also in a pipeline', async () => {
  class All extends Command {
    getKeys() {
      return this.args.slice(1, 1 + Number(this.args[0]));
    }
  }
  const all = (key) => new All('RL.ALL', [2, `{${key}}:second`, `{${key}}:day`, 'SLIDE', 5, 1, 'FIXED', 100, '1d']);
  const moved = await ioredis({}, async (redis) => {
    for (const key of KEYS) assert.equal((await redis.sendCommand(all(key)))[0], 1);
    for (const key of KEYS) {
      const pipeline = redis.pipeline();
      pipeline.sendCommand(all(key));
      assert.equal((await pipeline.exec())[0][1][0], 1);
    }
  });
  assert.equal(moved, 0);
});

test('node-redis gets the key as an argument', async () => {
  const redis = createCluster({ rootNodes: cluster.nodes.map(({ host, port }) => ({ socket: { host, port } })) });
  await redis.connect();
  try {
    const before = await cluster.moved();
    for (const key of KEYS) {
      assert.equal((await redis.sendCommand(key, false, ['RL.GCRA', key, '10', '60']))[0], 1);
      assert.equal((await redis.sendCommand(key, true, ['RL.PEEK', 'GCRA', key, '10', '60']))[2], 9);
      const [one, other] = [`{${key}}:second`, `{${key}}:day`];
      const all = ['RL.ALL', '2', one, other, 'SLIDE', '5', '1', 'FIXED', '100', '1d'];
      assert.equal((await redis.sendCommand(one, false, all))[0], 1);
    }
    // A wait needs a separate connection to the node of the key.
    for (const key of KEYS.slice(0, 3)) {
      const call = ['RL.FIXED', `wait:${key}`, '1', '1'];
      await redis.sendCommand(call[1], false, call);
      const slot = await redis.sendCommand(undefined, true, ['CLUSTER', 'KEYSLOT', call[1]]);
      const own = await (await redis.nodeClient(redis.slots[slot].master)).duplicate().connect();
      try {
        assert.equal((await own.sendCommand([...call, 'BLOCK', '30']))[0], 1);
      } finally {
        own.destroy();
      }
    }
    assert.equal((await cluster.moved()) - before, 0);
    // Without the key, node-redis tries nodes at random until it finds the right one or has tried too many.
    await Promise.allSettled(KEYS.map((key) => redis.sendCommand(undefined, false, ['RL.GCRA', key, '10', '60'])));
    assert.ok((await cluster.moved()) - before > KEYS.length / 3);
  } finally {
    redis.destroy();
  }
});

test('a Cluster repeats a command whose connection broke, unless retryDelayOnFailover is 0', async () => {
  const blocked = async (node) => {
    const clients = (await node.client('LIST')).split('\n').filter((client) => / flags=\w*b/.test(client));
    return clients.map((client) => client.match(/^id=(\d+)/)[1]);
  };
  for (const [retryDelayOnFailover, repeats] of [[100, true], [0, false]]) {
    await Promise.all(cluster.each.map((node) => node.flushall()));
    await ioredis({ retryDelayOnFailover, redisOptions: { autoResendUnfulfilledCommands: false } }, async (redis) => {
      const call = (...block) => redis.sendCommand(new Keyed('RL.FIXED', ['line', 1, '1h', ...block]));
      assert.equal((await call())[0], 1);
      const slot = await redis.cluster('KEYSLOT', 'line');
      const node = cluster.each[cluster.nodes.findIndex(({ port }) => redis.slots[slot][0].endsWith(`:${port}`))];
      const reply = call('BLOCK', '2h').then(([granted]) => granted, ({ message }) => message);
      await eventually(async () => (await blocked(node)).length === 1);
      const [first] = await blocked(node);
      await node.client('KILL', 'ID', first);
      if (repeats) {
        await eventually(async () => (await blocked(node)).some((id) => id !== first));
        await node.del('line');
      }
      assert.equal(await reply, repeats ? 1 : 'Connection is closed.');
    });
  }
});
