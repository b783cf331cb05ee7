/**
 * The adapter for a client, which is found by the client's methods.
 *
 * @param {Client} client
 * @returns {Adapter}
 */
export function adapterOf(client: Client): Adapter;
export type Adapter = import("./adapter.js").Adapter;
/**
 * A client of ioredis (`Redis`, `Cluster`), of node-redis (`createClient`, `createCluster`, `createSentinel`) or of
 * valkey-glide (`GlideClient`, `GlideClusterClient`).
 */
export type Client = {
    sendCommand(...args: any[]): any;
} | {
    customCommand(...args: any[]): any;
};
