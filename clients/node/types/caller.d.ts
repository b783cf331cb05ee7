/**
 * Whether the server may have executed a call that has ended with this error.
 *
 * @param {unknown} error
 */
export function mayHaveRun(error: unknown): boolean;
/**
 * The reply to a call.
 *
 * @typedef {object} Answer
 * @property {unknown} reply
 * @property {boolean} before whether the call was sent before, and may have been executed then, without a reply
 */
/** Sends calls, and repeats those that may be repeated. */
export class Caller {
    /**
     * @param {Adapter} adapter
     * @param {number} patienceMs
     */
    constructor(adapter: Adapter, patienceMs: number);
    /**
     * Sends a call. With `repeat`, it is sent again when no reply came, or when the server refused for now, until the patience
     * ends.
     *
     * @param {Call} call
     * @param {{ repeat?: boolean, patienceMs?: number }} [options]
     * @returns {Promise<Answer>}
     */
    send(call: Call, { repeat, patienceMs }?: {
        repeat?: boolean;
        patienceMs?: number;
    }): Promise<Answer>;
    /**
     * Sends a call that may wait in line. At first it is sent without `BLOCK` on the shared connection, and if it is denied, with
     * `BLOCK` on a connection of its own. A call that the server ends, because the key's slot moves or a replica takes over,
     * goes on waiting: nothing was charged. A call without a reply is repeated only with `repeat`. The time in line does not
     * count for the patience.
     *
     * @param {(block: string[]) => Call} makeCall
     * @param {(reply: unknown) => boolean} isFinal whether a reply without `BLOCK` is an answer: granted, or never granted
     * @param {{ waitMs: number, repeat?: boolean, signal?: AbortSignal }} options
     * @returns {Promise<Answer>}
     */
    inLine(makeCall: (block: string[]) => Call, isFinal: (reply: unknown) => boolean, { waitMs, repeat, signal }: {
        waitMs: number;
        repeat?: boolean;
        signal?: AbortSignal;
    }): Promise<Answer>;
    #private;
}
export type Adapter = import("./adapters/adapter.js").Adapter;
export type Call = import("./adapters/adapter.js").Call;
/**
 * The reply to a call.
 */
export type Answer = {
    reply: unknown;
    /**
     * whether the call was sent before, and may have been executed then, without a reply
     */
    before: boolean;
};
