/**
 * An adapter for a `Redis` or a `Cluster` of ioredis, or of a package with the same interface.
 *
 * ioredis sends commands again when a connection is lost, and sends late those that it has queued while there was none. A
 * command of the limiter must not be sent again by itself, and not after its caller has given it up: it would be charged
 * twice, or for nobody. So a command that is given up writes a `PING` when ioredis wants to write it.
 *
 * @param {any} client
 * @returns {Adapter}
 */
export function ioredisAdapter(client: any): Adapter;
export type Adapter = import("./adapter.js").Adapter;
export type Call = import("./adapter.js").Call;
