/** @typedef {import('./adapter.js').Adapter} Adapter */
/** @typedef {import('./adapter.js').Call} Call */
/**
 * An adapter for a client, a cluster or a sentinel client of node-redis. Clients and cluster clients of node-redis do not
 * send a command again after a lost connection. A sentinel client does; here it is kept from it.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function nodeRedisAdapter(client: any): Adapter;
export type Adapter = import("./adapter.js").Adapter;
export type Call = import("./adapter.js").Call;
export type Word = import("../policies.js").Word;
