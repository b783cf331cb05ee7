import { Buffer } from 'node:buffer';
import { shown } from './durations.js';
import { InvalidCost, InvalidId, InvalidKey } from './errors.js';

/** @import { Word } from './policies.js' */
/** @typedef {string | Uint8Array | number | bigint} Key text, bytes or an integer, not empty */

const MOST_UNITS = 1_000_000_000_000;

/** @param {unknown} cost @returns {number} */
export function checkedCost(cost) {
  if (typeof cost === 'number' && Number.isInteger(cost) && cost >= 1 && cost <= MOST_UNITS) return cost;
  throw new InvalidCost(`a cost is a whole number from 1 to ${MOST_UNITS}, not ${shown(cost)}`);
}

/** @param {unknown} units @returns {number} */
export function checkedUsed(units) {
  if (typeof units === 'number' && Number.isInteger(units) && units >= 0 && units <= MOST_UNITS) return units;
  throw new InvalidCost(`what was used is a whole number from 0 to ${MOST_UNITS}, not ${shown(units)}`);
}

/** @param {unknown} id @returns {string} */
export function checkedId(id) {
  const length = typeof id === 'string' ? Buffer.byteLength(id) : 0;
  if (length >= 1 && length <= 64) return /** @type {string} */ (id);
  throw new InvalidId(`an id is text of 1 to 64 bytes, not ${shown(id)}`);
}

/** The key on the server. @param {string} start @param {unknown} key @returns {Word} */
export function checkedKey(start, key) {
  if (Number.isSafeInteger(key) || typeof key === 'bigint') return start + key;
  if (typeof key === 'string' && key !== '') {
    if (/\p{Surrogate}/u.test(key)) throw new InvalidKey('the key is not valid Unicode');
    return start + key;
  }
  if (key instanceof Uint8Array && key.length) return Buffer.concat([Buffer.from(start), key]);
  throw new InvalidKey(`a key is text, bytes or an integer, and not empty; not ${shown(key)}`);
}

/** A key of a Map for a key on the server: the same for text and for its bytes. @param {Word} word */
export function nameOf(word) {
  if (typeof word === 'string' && /^[\x00-\x7f]*$/.test(word)) return word;
  return Buffer.from(word).toString('latin1');
}

/** @param {unknown} body */
export function checkedBody(body) {
  if (typeof body !== 'function') throw new TypeError('the options, which may be {}, and then a function are needed');
}
