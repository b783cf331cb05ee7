import { Buffer } from 'node:buffer';
import { shown } from './durations.js';
import { InvalidCost, InvalidId, InvalidKey, InvalidLimit } from './errors.js';

/** A word of a command. */
export type Word = string | Buffer;

/** Text, bytes or an integer, not empty. */
export type Key = string | Uint8Array | number | bigint;

export const MOST_UNITS = 1_000_000_000_000;

export function whole(value: unknown, name: string, least: number, most: number, error: new (message: string) => Error = InvalidLimit) {
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new error(`${name} must be a whole number from ${least} to ${most}, not ${shown(value)}`);
}

/** Throws if there are options that `what` does not have. */
export function none(others: object, what = 'the policy') {
  const names = Object.keys(others);
  if (names.length) throw new InvalidLimit(`${what} has no option ${names.join(', ')}`);
}

export const checkedCost = (cost: unknown) => whole(cost, 'a cost', 1, MOST_UNITS, InvalidCost);

export const checkedUsed = (units: unknown) => whole(units, 'what was used', 0, MOST_UNITS, InvalidCost);

export const costWords = (cost: number) => (checkedCost(cost) === 1 ? [] : ['COST', String(cost)]);

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
