/**
 * An adapter for a client or a cluster client of valkey-glide. They do not send a command again whose connection was lost.
 * But a command that waits for a connection is sent when there is one, also if its caller has given it up: the client cannot
 * take it back.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function valkeyGlideAdapter(client: any): Adapter;
export type Adapter = import("./adapter.js").Adapter;
export type Call = import("./adapter.js").Call;
