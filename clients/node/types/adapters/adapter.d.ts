/**
 * Runs `action` after this time; returns a function that cancels it.
 *
 * @param {number} ms
 * @param {() => void} action
 */
export function later(ms: number, action: () => void): () => void;
/**
 * Ends an action after this time, or when the signal is aborted.
 *
 * @template T
 * @param {number} ms
 * @param {AbortSignal | undefined} signal
 * @param {() => Promise<T>} action
 * @returns {Promise<T>}
 */
export function limited<T>(ms: number, signal: AbortSignal | undefined, action: () => Promise<T>): Promise<T>;
/**
 * The hash slot of a key: CRC16 of its hash tag, or of the whole key.
 *
 * @param {Word} key
 */
export function slotOf(key: Word): number;
/**
 * A text that hashes to this slot.
 *
 * @param {number} slot
 */
export function textIn(slot: number): string;
/**
 * The id of a server's run, in its INFO.
 *
 * @param {string} info
 */
export function runId(info: string): string | undefined;
/** @typedef {import('../policies.js').Word} Word */
/**
 * A command of the module.
 *
 * @typedef {object} Call
 * @property {string} name
 * @property {Word[]} args
 * @property {Word[]} keys the keys among the arguments
 * @property {boolean} [replica] whether a replica may serve it
 */
/**
 * What this package needs of a client. Each method sends the call once, and never again: only the server's redirections in a
 * cluster are followed, because a node that redirects a call has not executed it. Without a reply, it throws `NoReply`; an
 * error that the server replies is thrown as the client reports it.
 *
 * @typedef {object} Adapter
 * @property {(call: Call, patienceMs: number, signal?: AbortSignal) => Promise<unknown>} send on the shared connection
 * @property {(call: Call, waitMs: number, patienceMs: number, joined: () => void, signal?: AbortSignal) => Promise<unknown>}
 *     wait on a connection of its own to the node of the key, for a reply that may take `waitMs`. `joined` is called when the
 *     call is sent. When it ends, the connection is closed.
 * @property {NodeName} nodeName the node that has the key, as far as the client knows
 * @property {Track} [track] opens two connections to this node: one for calls whose keys are tracked, and one on which the
 *     server says that such a key has changed; missing if the client does not report this
 */
/**
 * @typedef {(call: Call) => string} NodeName
 */
/**
 * @typedef {(call: Call, patienceMs: number, listener: Invalidations) => Promise<Tracker>} Track
 */
/**
 * @typedef {object} Invalidations
 * @property {(key: Buffer | null) => void} changed the key has changed; null: all keys may have
 * @property {() => void} lost the connection is lost: keys may have changed without a word
 */
/**
 * @typedef {object} Tracker
 * @property {(call: Call, patienceMs: number) => Promise<unknown>} send
 * @property {() => void} close
 */
/** The client waits for a reply this much longer than the wait that it asks the server for. */
export const MARGIN_MS: 5000;
export type Word = import("../policies.js").Word;
/**
 * A command of the module.
 */
export type Call = {
    name: string;
    args: Word[];
    /**
     * the keys among the arguments
     */
    keys: Word[];
    /**
     * whether a replica may serve it
     */
    replica?: boolean | undefined;
};
/**
 * What this package needs of a client. Each method sends the call once, and never again: only the server's redirections in a
 * cluster are followed, because a node that redirects a call has not executed it. Without a reply, it throws `NoReply`; an
 * error that the server replies is thrown as the client reports it.
 */
export type Adapter = {
    /**
     * on the shared connection
     */
    send: (call: Call, patienceMs: number, signal?: AbortSignal) => Promise<unknown>;
    /**
     * on a connection of its own to the node of the key, for a reply that may take `waitMs`. `joined` is called when the
     * call is sent. When it ends, the connection is closed.
     */
    wait: (call: Call, waitMs: number, patienceMs: number, joined: () => void, signal?: AbortSignal) => Promise<unknown>;
    /**
     * the node that has the key, as far as the client knows
     */
    nodeName: NodeName;
    /**
     * opens two connections to this node: one for calls whose keys are tracked, and one on which the
     * server says that such a key has changed; missing if the client does not report this
     */
    track?: Track | undefined;
};
export type NodeName = (call: Call) => string;
export type Track = (call: Call, patienceMs: number, listener: Invalidations) => Promise<Tracker>;
export type Invalidations = {
    /**
     * the key has changed; null: all keys may have
     */
    changed: (key: Buffer | null) => void;
    /**
     * the connection is lost: keys may have changed without a word
     */
    lost: () => void;
};
export type Tracker = {
    send: (call: Call, patienceMs: number) => Promise<unknown>;
    close: () => void;
};
