import { isIP } from 'node:net';
import type { Key } from './checks.js';
import { type Decision, headers } from './decision.js';
import { shown } from './durations.js';
import type { RateLimit } from './limit.js';
import type { Shared } from './shared.js';
import type { Wallet } from './wallet.js';

/** What an adapter is told about requests `R`. `A` makes the answer to a denial. */
export interface WebOptions<R, A> {
  /** Null or undefined: the request is not limited. The default is `addressKey` of the client's address. */
  key?: (request: R) => Key | null | undefined | Promise<Key | null | undefined>;
  /** 1 if omitted. */
  cost?: (request: R) => number | Promise<number>;
  /** Whether the request is not limited. */
  skip?: (request: R) => boolean | Promise<boolean>;
  /** The default is 429 with `decision.problem()`. */
  denied?: A;
}

type Limiter = RateLimit | Wallet;

/** A limit, a wallet, or a function of the request that returns one. */
export type LimitOf<R> = Limiter | ((request: R) => Limiter | Promise<Limiter>);

/** The decisions about a request. Several limits may have decided. */
const DECISIONS = Symbol('the decisions of redis-rl');

/**
 * Returns a function that decides about a request: its decision, and the header fields of all decisions about the request; undefined
 * if it is not limited.
 */
export function gate<R extends object, A>(limit: LimitOf<R>, options: WebOptions<R, A>, addressOf: (request: R) => string | undefined) {
  const { key = (request) => addressKey(addressOf(request)), cost = () => 1, skip = () => false, denied = () => {} } = options;
  if ([key, cost, skip, denied].some((one) => typeof one !== 'function')) throw new TypeError('key, cost, skip and denied are functions');
  if (typeof limit !== 'function' && typeof limit?.take !== 'function') {
    throw new TypeError('a limit of a rate, a wallet, or a function that returns one is needed');
  }
  // Of the limit that was used last.
  let shared: Shared | undefined = typeof limit === 'function' ? undefined : limit.shared;
  return async (request: R) => {
    let decision: Decision;
    try {
      if (await skip(request)) return undefined;
      const one = typeof limit === 'function' ? await limit(request) : limit;
      if (typeof one?.take !== 'function') throw new TypeError(`the function has returned no limit: ${shown(one)}`);
      shared = one.shared;
      const name = await key(request);
      if (name === undefined || name === null) return undefined;
      decision = await one.take(name, await cost(request));
    } catch (error) {
      // A mistake of the program must not stop an application that may go on without limits.
      if (!shared?.goesOn) throw error;
      shared.log('web', 'a request goes on without its limit', error);
      return undefined;
    }
    const decisions: { [DECISIONS]?: Decision[] } = request;
    (decisions[DECISIONS] ??= []).push(decision);
    return { decision, fields: Object.entries(headers(decisions[DECISIONS])) };
  };
}

/** The type of the body of a denial. */
export const PROBLEM = 'application/problem+json';

/**
 * The key of an address: `address:` and the address; of IPv6 its /64, because one client has all of it. A text that is no address
 * stays as it is.
 */
export function addressKey(text = 'unknown'): string {
  const address = text.replace(/%.*$/, '');
  if (isIP(address) !== 6) return `address:${isIP(address) ? address : text}`;
  // The shortest form, whose groups stand before and after `::`.
  const [before, after] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::').map((part) => (part ? part.split(':') : []));
  const groups = after ? [...before, ...Array(8 - before.length - after.length).fill('0'), ...after] : before;
  if (groups.slice(0, 6).join(':') === '0:0:0:0:0:ffff') {
    // An address of IPv4.
    const bytes = groups.slice(6).map((group) => Number.parseInt(group, 16)).flatMap((word) => [word >> 8, word & 255]);
    return `address:${bytes.join('.')}`;
  }
  return `address:${groups.slice(0, 4).join(':').replace(/(^|:)(0(:|$))+$/, '')}::/64`;
}
