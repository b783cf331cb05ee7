// Tests pauses: what the process does about its wallets and its repeated denials, and workers that share a third party. The cases of
// behaviour.json say what the calls return.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { afterEach, describe, test } from 'node:test';
import axios from 'axios';
import { Decision, Fixed, Gcra, Limits, Unavailable } from '../dist/index.js';
import { Repeats } from '../dist/repeats.js';
import { EACH } from './clients.mjs';
import { eventually, inspect, onServer, startProxy, stopClock, used } from './server.mjs';

const PATIENT = { timeout: 20, connectTimeout: 20 };
const HOURLY = new Fixed('1000/h');
let server, admin;
onServer((...started) => ([server, admin] = started));
afterEach(() => admin.flushall());

for (const [name, { single }] of EACH) {
  /** Runs `use` with limits of this client, through a proxy. */
  const withLimits = async (use, options = {}) => {
    const proxy = await startProxy(server);
    const { client, close } = await single(proxy.path);
    const limits = new Limits(client, { ...PATIENT, ...options });
    try {
      await use(limits, proxy);
    } finally {
      await limits.close();
      await close();
      await proxy.stop();
    }
  };

  describe(`a pause: ${name}`, () => {
    test('it stops the wallets of this process', () =>
      withLimits(async (limits) => {
        const both = [limits.limit('api', HOURLY), limits.limit('api', HOURLY)];
        const wallets = both.map((limit) => limits.wallet(limit, { batch: 100, idle: 3600 }));
        for (const key of ['a', 'b']) for (const wallet of wallets) assert.equal((await wallet.take(key)).granted, 1);
        const rest = await both[0].pause('a', 60);
        assert.ok(rest > 50 && rest <= 60, `${rest}`);
        // What they had is given back.
        await eventually(async () => (await used(admin, 'api:a')) === 2 && (await inspect(admin, 'api:a')).ids === 0);
        assert.equal(await used(admin, 'api:b'), 200);
        for (const wallet of wallets) {
          const denied = await wallet.take('a');
          assert.deepEqual([denied.granted, denied.remaining, denied.wait > 30], [0, 0, true]);
          // Another key is not paused.
          assert.equal((await wallet.take('b')).granted, 1);
        }
        await both[0].resume('a');
        for (const wallet of wallets) assert.equal((await wallet.take('a')).granted, 1);
        assert.equal(await used(admin, 'api:a'), 202);
        // One that another process has set is found by the next fetch.
        await admin.call('RL.PAUSE', 'api:a', '60s');
        for (const wallet of wallets) assert.deepEqual([(await wallet.take('a', 99)).granted, (await wallet.take('a')).granted], [99, 0]);
      }));

    test('a wallet stops before the server knows, and what is being fetched is not spent', () =>
      withLimits(async (limits) => {
        const limit = limits.limit('api', HOURLY);
        const wallet = limits.wallet(limit, { batch: 100, idle: 3600 });
        await wallet.take('a');
        // On one connection: what the first call fetches was granted before the pause, and the last call comes after it.
        const [first, rest, last] = await Promise.all([wallet.take('a', 150), limit.pause('a', 60), wallet.take('a')]);
        assert.deepEqual([first.granted, rest > 0, last.granted], [0, true, 0]);
        await eventually(async () => (await used(admin, 'api:a')) === 1);
      }));

    test('units whose reply comes after that of the pause are given back', () =>
      withLimits(async (limits) => {
        const limit = limits.limit('api', HOURLY);
        const wallet = limits.wallet(limit, { batch: 100, idle: 3600 });
        const { servers } = limit.shared;
        const send = servers.send.bind(servers);
        let pass;
        const passed = new Promise((resolve) => (pass = resolve));
        servers.send = async (call, options) => {
          const answer = await send(call, options);
          if (call.args.includes('UPTO')) await passed;
          return answer;
        };
        const take = wallet.take('a');
        await eventually(async () => (await used(admin, 'api:a')) === 100);
        assert.ok((await limit.pause('a', 60)) > 0);
        pass();
        assert.equal((await take).granted, 0);
        await eventually(async () => (await used(admin, 'api:a')) === 0);
        assert.equal((await wallet.take('a')).granted, 0);
      }));

    test('without a reply it is unknown whether it is in force, so the wallet has stopped', () =>
      withLimits(async (limits, proxy) => {
        const limit = limits.limit('api', HOURLY);
        const wallet = limits.wallet(limit, { batch: 100, idle: 3600 });
        await wallet.take('a');
        for (let n = 0; n < 100; n++) proxy.lose('reply', 'RL.PAUSE');
        await assert.rejects(limit.pause('a', 60), Unavailable);
        assert.ok((await inspect(admin, 'api:a')).paused_ms > 0);
        assert.equal((await wallet.take('a')).granted, 0);
        await eventually(async () => (await used(admin, 'api:a')) === 1);
      }, { timeout: 1.5, connectTimeout: 1.5 }));

    test('a denial is not repeated after a pause or its end', (t) =>
      withLimits(async (limits) => {
        stopClock(t);
        const limit = limits.limit('api', new Fixed('10/h'));
        const sources = async () => [(await limit.take('a')).source, (await limit.take('a')).source];
        await limit.take('a', 10);
        assert.deepEqual(await sources(), ['server', 'repeated']);
        // A call of another cost has another wait.
        const beyond = await limit.take('a', 11);
        assert.deepEqual([beyond.source, beyond.wait], ['server', null]);
        await limit.pause('a', '2h');
        const denied = await limit.take('a');
        assert.deepEqual([denied.source, denied.wait > 3600], ['server', true]);
        await limit.resume('a');
        await limit.refund('a', 10);
        await limit.pause('a', 60);
        assert.deepEqual(await sources(), ['server', 'repeated']);
        await limit.resume('a');
        assert.equal((await limit.take('a')).granted, 1);
      }, { repeatDenials: 1 }));
  });
}

test('a denial whose call began before the end of a pause is not repeated', (t) => {
  stopClock(t);
  const repeats = new Repeats(1000);
  const denied = new Decision('api', HOURLY, [0, 10, 0, 5000, 0]);
  const { changes } = repeats;
  repeats.forget('a');
  repeats.add('a', 1, denied, changes);
  assert.equal(repeats.find('a', 1), undefined);
  repeats.add('a', 1, denied, repeats.changes);
  assert.equal(repeats.find('a', 1).source, 'repeated');
});

const [WORKERS, CALLS, PAUSE_MS] = [8, 6, 3000];

/** A third party that says stop once, and remembers for each call the time of the server at which it came. */
async function fakePartner() {
  const log = [];
  const now = ([seconds, us]) => Number(seconds) * 1000 + Number(us) / 1000;
  const partner = createServer(async (_, response) => {
    const place = log.push(now(await admin.time()));
    if (place === 2 * WORKERS) response.writeHead(429, { 'Retry-After': PAUSE_MS / 1000 });
    response.end();
  });
  await once(partner.listen(0, '127.0.0.1'), 'listening');
  const stop = () => {
    const closed = once(partner, 'close');
    // Node.js 18 returns nothing from close().
    partner.close();
    return closed;
  };
  return { log, now, url: `http://127.0.0.1:${partner.address().port}`, stop };
}

for (const library of ['fetch', 'axios']) {
  test(`eight workers stop when the third party says so: ${library}`, async () => {
    const partner = await fakePartner();
    const call = library === 'fetch'
      ? async () => fetch(partner.url, { headers: { Connection: 'close' } })
      : async () => axios.get(partner.url, { validateStatus: null });
    /** A worker with connections of its own. */
    const worker = async () => {
      const { client, close } = await EACH[0][1].single(server.path);
      const limits = new Limits(client, PATIENT);
      try {
        const limit = limits.limit('partner', new Gcra('40/s', { burst: 1 }));
        for (let n = 0; n < CALLS; n++) {
          assert.ok((await limit.wait('api', 600)).allowed);
          const response = await call();
          assert.equal((await limit.observe('api', response)) > 0, response.status === 429);
        }
      } finally {
        await limits.close();
        await close();
      }
    };
    /** When the pause of the key ends, in ms of the server's time. */
    let end;
    const paused = async () => {
      const [[, time], [, facts]] = await admin.multi().time().call('RL.INSPECT', 'partner:api').exec();
      const rest = facts ? facts[facts.indexOf('paused_ms') + 1] : 0;
      if (rest) end = partner.now(time) + rest;
      return rest > 0;
    };
    try {
      await Promise.all([eventually(paused), ...Array.from({ length: WORKERS }, worker)]);
    } finally {
      await partner.stop();
    }
    // The rest of a pause is rounded up to a ms. Each of the other workers may have had one call under way when it began.
    const begin = end - PAUSE_MS;
    end -= 1;
    const during = partner.log.filter((time) => time >= begin && time < end);
    assert.ok(during.length < WORKERS, `${during.length} calls came during the pause`);
    // It has begun after the answer, and all others came in their turn, after its end.
    assert.ok(partner.log[2 * WORKERS - 1] < begin + 1);
    assert.equal(partner.log.length, WORKERS * CALLS);
    assert.ok(partner.log.filter((time) => time >= end).length >= WORKERS);
  });
}
