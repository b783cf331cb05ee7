// The class Server of the npm package, from the folder in which it is installed.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import * as all from 'redis-rl-server';
import { ReplyError, startServer } from 'redis-rl-server';
import { rlServer } from 'redis-rl-server/test';

const folder = mkdtempSync('/tmp/redis rl ');
process.env.TMPDIR = folder;
test.after(() => rmSync(folder, { recursive: true }));
const shared = rlServer();

// The folders that are left, and the processes whose TMPDIR has them, but for those of the server that the tests share.
function left() {
  const processes = readdirSync('/proc').filter((name) => {
    try {
      const here = `TMPDIR=${folder}`;
      return name !== String(process.pid) && readFileSync(`/proc/${name}/environ`, 'utf8').split('\0').includes(here);
    } catch {
      return false;
    }
  });
  return { folders: readdirSync(folder).filter((name) => name !== path.basename(shared.folder)), processes };
}

test('the types name all exports, and the members of a server', () => {
  const types = readFileSync('node_modules/redis-rl-server/index.d.ts', 'utf8');
  const named = [...types.matchAll(/^export (?:class|const|function) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(named.sort(), Object.keys(all).sort());
  const members = types.match(/class Server \{([^}]*)\}/)[1].matchAll(/^ {2}(?:readonly )?(\w+)/gm);
  for (const [, member] of members) assert.ok(member in shared, member);
});

test('100 starts, 20 at a time', async () => {
  const before = left();
  let n = 0;
  const work = async () => {
    while (n++ < 100) {
      const server = await startServer({ port: n % 2 ? 0 : null });
      assert.deepEqual(await server.call('RL.GCRA', 'key', 10, 60), [1, 10, 9, 0, 6000]);
      await server.stop();
    }
  };
  await Promise.all(Array.from({ length: 20 }, work));
  assert.deepEqual(left(), before);
});

test('a program that is killed leaves nothing, and one that forgets to stop the server ends', async () => {
  const before = left();
  const program = `import { startServer } from 'redis-rl-server'; console.log((await startServer()).url);`;
  execFileSync(process.execPath, ['--input-type=module', '-e', program], { timeout: 60_000 });
  const killed = spawn(process.execPath, ['--input-type=module', '-e', `${program} setInterval(() => {}, 1000)`]);
  assert.match(String(await new Promise((resolve) => killed.stdout.once('data', resolve))), /^redis:\/\/127/);
  killed.kill('SIGKILL');
  for (let n = 0; n < 200 && left().processes.length > before.processes.length; n++) await sleep(50);
  assert.deepEqual(left(), before);
});

test('arguments and errors', async () => {
  const server = await startServer({ arguments: ['--rl.max-waiters', '7'] });
  assert.deepEqual(await server.call('CONFIG', 'GET', 'rl.max-waiters'), ['rl.max-waiters', '7']);
  await assert.rejects(server.call('RL.GCRA'), ReplyError);
  await assert.rejects(server.start(), /started already/);
  await assert.rejects(server.call('SHUTDOWN'), /closed/);
  await server.wait();
  await server.stop();
  await assert.rejects(startServer({ arguments: ['--no-such-option', '1'] }), /no-such-option/);
});

for (const number of [1, 2]) {
  test(`the helper's server is flushed: ${number}`, async () => {
    assert.deepEqual(await shared.call('RL.FIXED', 'key', 10, 60), [1, 10, 9, 0, 60000]);
    assert.deepEqual(await shared.call('RL.TOP'), []);
    await shared.call('RL.FIXED', 'key', 0, 60);
    assert.equal((await shared.call('RL.TOP')).length, 1);
  });
}

test('the code of the README', async () => {
  const code = readFileSync(process.env.REDIS_RL_README, 'utf8').match(/(?<=```js\n)[^]*?(?=```)/g);
  assert.equal(code.length, 2);
  for (const [block, said] of [[code[0], '[ 1, 10, 9, 0, 6000 ]'], [code[1], '# pass 1']]) {
    const { NODE_TEST_CONTEXT, ...env } = process.env;
    const args = ['--test-reporter=tap', '--input-type=module', '-e', block];
    assert.ok(execFileSync(process.execPath, args, { encoding: 'utf8', env, timeout: 60_000 }).includes(said));
  }
});
