/**
 * @param {unknown} cost
 * @returns {number}
 */
export function checkedCost(cost: unknown): number;
/**
 * @param {unknown} units
 * @returns {number}
 */
export function checkedUsed(units: unknown): number;
/**
 * @param {unknown} id
 * @returns {string}
 */
export function checkedId(id: unknown): string;
