// A gateway to a language model. A call of a tenant is charged all of these, or none: one of 4 places, one of 60 requests a minute,
// its estimated tokens of the tenant's 20 000 a minute, and of the 100 000 of all tenants together. It waits in line for them, renews
// its place while it runs, and is settled to the tokens that it has used.
//
// The rules stand in this order because they are settled in the reverse order: the key for which most calls wait is settled first,
// and the place is released last, so that the next call of the tenant finds the tokens settled. All keys have the hash tag {llm}, so
// that they are on one node of a cluster.
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Lease, Limits, Slide } from 'redis-rl';

/** Stands for the client of a model. */
const model = {
  async complete(prompt, { signal }) {
    await sleep(10, undefined, { signal });
    return { text: prompt.toUpperCase(), tokens: Math.floor(prompt.length / 3) + 20 };
  },
  async *stream(prompt, { signal }) {
    for (const text of prompt.toUpperCase().split(' ')) {
      await sleep(10, undefined, { signal });
      yield { text, tokens: 2 };
    }
  },
};

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
const limits = new Limits(redis, { prefix: '{llm}:' });
const running = limits.limit('running', new Lease(4, '30s'));
const requests = limits.limit('requests', new Slide('60/m'));
const tokens = limits.limit('tokens', new Slide('20000/m'));
const all = limits.limit('all', new Slide('100000/m'));

function admit(tenant, prompt, body) {
  const rules = [[running, tenant], [requests, tenant, 1], [tokens, tenant], [all, 'tokens']];
  return limits.admit(rules, { estimate: Math.floor(prompt.length / 3) + 1000, wait: 90 }, body);
}

const complete = (tenant, prompt) =>
  admit(tenant, prompt, async (call) => {
    const answer = await model.complete(prompt, { maxTokens: 1000, signal: call.signal });
    call.used = answer.tokens;
    return answer.text;
  });

const stream = (tenant, prompt, send) =>
  admit(tenant, prompt, async (call) => {
    call.used = Math.floor(prompt.length / 3); // What is charged if the client disconnects now.
    for await (const chunk of model.stream(prompt, { maxTokens: 1000, signal: call.signal })) {
      call.used += chunk.tokens;
      send(chunk.text);
    }
  });

const calls = ['ada', 'bob'].flatMap((tenant) => Array.from({ length: 10 }, () => complete(tenant, 'hello there')));
console.log((await Promise.all(calls)).length, 'answers');
await stream('ada', 'one two three', console.log);
console.log('ada has', (await tokens.peek('ada')).remaining, 'tokens left');
await limits.close();
redis.disconnect();
