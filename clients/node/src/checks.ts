import { Buffer } from 'node:buffer';
import { shown } from './durations.js';
import { InvalidCost, InvalidId, InvalidKey } from './errors.js';
import type { Word } from './policies.js';

/** Text, bytes or an integer, not empty. */
export type Key = string | Uint8Array | number | bigint;

const MOST_UNITS = 1_000_000_000_000;

export function checkedCost(cost: unknown, least = 1, name = 'a cost'): number {
  if (typeof cost === 'number' && Number.isInteger(cost) && cost >= least && cost <= MOST_UNITS) return cost;
  throw new InvalidCost(`${name} is a whole number from ${least} to ${MOST_UNITS}, not ${shown(cost)}`);
}

export const checkedUsed = (units: unknown) => checkedCost(units, 0, 'what was used');

export function checkedId(id: unknown): string {
  const length = typeof id === 'string' ? Buffer.byteLength(id) : 0;
  if (length >= 1 && length <= 64) return id as string;
  throw new InvalidId(`an id is text of 1 to 64 bytes, not ${shown(id)}`);
}

/** The key on the server. */
export function checkedKey(start: string, key: unknown): Word {
  if (Number.isSafeInteger(key) || typeof key === 'bigint') return start + key;
  if (typeof key === 'string' && key !== '') {
    if (/\p{Surrogate}/u.test(key)) throw new InvalidKey('the key is not valid Unicode');
    return start + key;
  }
  if (key instanceof Uint8Array && key.length) return Buffer.concat([Buffer.from(start), key]);
  throw new InvalidKey(`a key is text, bytes or an integer, and not empty; not ${shown(key)}`);
}

/** A key of a Map for a key on the server: the same for text and for its bytes. */
export function nameOf(word: Word) {
  if (typeof word === 'string' && /^[\x00-\x7f]*$/.test(word)) return word;
  return Buffer.from(word).toString('latin1');
}

export function checkedBody(body: unknown) {
  if (typeof body !== 'function') throw new TypeError('the options, which may be {}, and then a function are needed');
}
