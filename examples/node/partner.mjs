// A third party accepts 5 calls a second, and no call may be dropped. Four processes, and as many more as are started on other
// machines, wait in one line on the server.
import cluster from 'node:cluster';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { Limits, Slide, Unavailable } from 'redis-rl';

if (cluster.isPrimary) {
  for (let first = 0; first < 4; first++) cluster.fork({ FIRST: first });
} else {
  const redis = new Redis(process.env.REDIS_URL ?? 'redis://localhost');
  redis.on('error', () => {});
  const limits = new Limits(redis);
  const partner = limits.limit('partner', new Slide('5/s'));
  for (let job = Number(process.env.FIRST); job < 24; job += 4) {
    while (!(await inTurn(partner)));
    console.log(`${new Date().toISOString()} job ${job} calls the partner now`);
  }
  await limits.close();
  redis.disconnect();
  cluster.worker.disconnect();
}

async function inTurn(partner) {
  try {
    return (await partner.wait('api', 60)).allowed;
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    console.error(`waiting again: ${error.message}`); // Such as a restart or a failover: it stands in line again.
    await sleep(1000);
    return false;
  }
}
