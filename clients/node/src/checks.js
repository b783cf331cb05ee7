import { Buffer } from 'node:buffer';
import { shown } from './durations.js';
import { InvalidCost, InvalidId } from './errors.js';

const MOST_UNITS = 1_000_000_000_000;

/**
 * @param {unknown} cost
 * @returns {number}
 */
export function checkedCost(cost) {
  if (typeof cost === 'number' && Number.isInteger(cost) && cost >= 1 && cost <= MOST_UNITS) return cost;
  throw new InvalidCost(`a cost is a whole number from 1 to ${MOST_UNITS}, not ${shown(cost)}`);
}

/**
 * @param {unknown} units
 * @returns {number}
 */
export function checkedUsed(units) {
  if (typeof units === 'number' && Number.isInteger(units) && units >= 0 && units <= MOST_UNITS) return units;
  throw new InvalidCost(`what was used is a whole number from 0 to ${MOST_UNITS}, not ${shown(units)}`);
}

/**
 * @param {unknown} id
 * @returns {string}
 */
export function checkedId(id) {
  const length = typeof id === 'string' ? Buffer.byteLength(id) : 0;
  if (length >= 1 && length <= 64) return /** @type {string} */ (id);
  throw new InvalidId(`an id is text of 1 to 64 bytes, not ${shown(id)}`);
}
