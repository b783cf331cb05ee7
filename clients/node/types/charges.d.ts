/** @typedef {import('./decision.js').AllDecision} AllDecision */
/** @typedef {import('./decision.js').Decision} Decision */
/** @typedef {import('./limits.js').LeaseLimit} LeaseLimit */
/** @typedef {import('./policies.js').Word} Word */
/**
 * A charge that is settled when its body ends.
 *
 * @template {Decision | AllDecision} [D=Decision]
 */
export class Charge<D extends Decision | AllDecision = import("./decision.js").Decision> {
    /**
     * @param {string} id
     * @param {D} decision
     */
    constructor(id: string, decision: D);
    /** The id of the charge. */
    id: string;
    /** What the server decided about the estimate. */
    decision: D;
    set used(units: number | undefined);
    /** The units that were really used: a whole number from 0; undefined if they are not known. */
    get used(): number | undefined;
    #private;
}
/** A lease that is held. */
export class Held {
    /**
     * @param {LeaseLimit} limit
     * @param {Word} key
     * @param {string} id
     * @param {Decision} decision
     * @param {number | undefined} takenAt when the call was sent; undefined if the lease may have begun earlier
     * @param {number} patienceMs
     * @param {AbortSignal} [signal]
     */
    constructor(limit: LeaseLimit, key: Word, id: string, decision: Decision, takenAt: number | undefined, patienceMs: number, signal?: AbortSignal);
    /** The id of the lease. */
    id: string;
    /** What the server decided. */
    decision: import("./decision.js").Decision;
    /**
     * Aborted when the lease is lost, or when the caller's signal is.
     *
     * @type {AbortSignal}
     */
    signal: AbortSignal;
    /**
     * Renews the lease now. Throws `LeaseLost` if it is lost.
     *
     * @param {number} [patienceMs]
     */
    renew(patienceMs?: number): Promise<import("./decision.js").Decision>;
    /** @internal */
    stop(): void;
    #private;
}
/**
 * The call that `withAdmission` has admitted.
 *
 * @extends {Charge<AllDecision>}
 */
export class Admission extends Charge<import("./decision.js").AllDecision> {
    /**
     * @param {string} id
     * @param {AllDecision} decision
     * @param {Held[]} held
     * @param {AbortSignal} [signal]
     */
    constructor(id: string, decision: AllDecision, held: Held[], signal?: AbortSignal);
    /**
     * Aborted when a lease is lost, or when the caller's signal is.
     *
     * @type {AbortSignal}
     */
    signal: AbortSignal;
    /** @internal */
    stop(): void;
    #private;
}
export type AllDecision = import("./decision.js").AllDecision;
export type Decision = import("./decision.js").Decision;
export type LeaseLimit = import("./limits.js").LeaseLimit;
export type Word = import("./policies.js").Word;
