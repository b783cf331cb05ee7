// A budget of tokens for calls of a language model: an estimate is charged before the call, and settled to what it has used.
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Limits, Slide } from 'redis-rl';

/** Stands for the client of a model. */
const model = {
  async complete(prompt, maxTokens) {
    await sleep(10);
    return { text: prompt.toUpperCase(), tokens: Math.min(maxTokens, Math.floor(prompt.length / 3) + 20) };
  },
};

const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
const tokens = new Limits(redis).limit('tokens', new Slide('10000/m'));

async function complete(team, prompt) {
  const estimate = Math.floor(prompt.length / 3) + 1000;
  // If it throws before `used` is set, everything is given back. A wait longer than the period stays in line for what others settle.
  return tokens.withCharge(team, estimate, { wait: 90 }, async (charge) => {
    const answer = await model.complete(prompt, 1000);
    charge.used = answer.tokens;
    return answer.text;
  });
}

const answers = await Promise.all(Array.from({ length: 30 }, (_, n) => complete('team-1', `question ${n}`)));
console.log(answers.length, 'answers');
console.log((await tokens.peek('team-1')).remaining, 'tokens are left');
redis.disconnect();
