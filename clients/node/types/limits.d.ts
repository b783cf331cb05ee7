/** What the limits of one `Limits` share. */
export class Shared {
    /**
     * @param {Client} client
     * @param {LimitsOptions} options
     */
    constructor(client: Client, { prefix, onDown, patience, peekReplica, log }: LimitsOptions);
    adapter: import("./adapters/adapter.js").Adapter;
    patienceMs: number;
    caller: Caller;
    prefix: string;
    open: boolean;
    peekReplica: boolean;
    log: (message: string, error: unknown) => void;
    /** @type {Set<Promise<void>>} */
    background: Set<Promise<void>>;
    /** @type {Set<() => void>} ends the pauses in the background */
    pauses: Set<() => void>;
    hurrying: number;
    /** @type {Set<{ leaver: AbortController, ended: Promise<unknown> }>} the calls that may wait */
    waits: Set<{
        leaver: AbortController;
        ended: Promise<unknown>;
    }>;
    loggedAt: number;
    /**
     * What a call returns, or, if the server gave no decision and the calls are let through then, what `uncounted` returns.
     *
     * @template T
     * @param {Promise<T>} decision
     * @param {() => T} uncounted
     * @returns {Promise<T>}
     */
    orOpen<T>(decision: Promise<T>, uncounted: () => T): Promise<T>;
    /**
     * Does something that no caller waits for. Its errors are logged.
     *
     * @param {string} what
     * @param {() => Promise<unknown>} action
     */
    later(what: string, action: () => Promise<unknown>): void;
    /** Waits until nothing is under way in the background. What is there pauses no more. */
    idle(): Promise<void>;
    /**
     * Pauses in the background. The timer keeps the process until then.
     *
     * @param {number} ms
     */
    pause(ms: number): Promise<void>;
    /**
     * Gives back what an id holds on these keys. If the server does not know the id, the call itself may still be on its way to
     * the server, on a connection of its own: then it is given back again a little later, and once more. Not so with an id of
     * the program, because the program may use it again.
     *
     * @param {Word[]} keys
     * @param {string} id
     * @param {boolean} ownId whether this package has made the id
     */
    giveBack(keys: Word[], id: string, ownId: boolean): void;
    /**
     * Runs a call that may wait. The caller's signal ends it, and so does `endWaits`.
     *
     * @template T
     * @param {AbortSignal | undefined} signal
     * @param {(signal: AbortSignal) => Promise<T>} action
     * @returns {Promise<T>}
     */
    waiting<T>(signal: AbortSignal | undefined, action: (signal: AbortSignal) => Promise<T>): Promise<T>;
    /** Ends the calls that wait. */
    endWaits(): Promise<void>;
}
/** Limits on one server, one cluster or behind one Sentinel. */
export class Limits {
    /**
     * @param {Client} client a client of ioredis, node-redis or valkey-glide; it may be shared with the rest of the program
     * @param {LimitsOptions} [options]
     */
    constructor(client: Client, options?: LimitsOptions);
    /**
     * A limit with this name and policy.
     *
     * @template {Policy} P
     * @param {string} name printable ASCII; it may contain a hash tag
     * @param {P} policy
     * @returns {P extends Lease ? LeaseLimit : RateLimit}
     */
    limit<P extends Policy>(name: string, policy: P): P extends Lease ? LeaseLimit : RateLimit;
    /**
     * Charges several limits, all or none. With an `id`, the call is repeated when no reply comes, and each key is settled or
     * released by itself; a lease needs an id, which is made if it is omitted. In a cluster the keys need one hash tag.
     *
     * @param {readonly (readonly [limit: Limit, key: Key, cost?: number])[]} rules
     * @param {{ wait?: Time, id?: string, signal?: AbortSignal }} [options]
     * @returns {Promise<AllDecision>}
     */
    all(rules: readonly (readonly [limit: Limit, key: Key, cost?: number])[], { wait, id, signal }?: {
        wait?: Time;
        id?: string;
        signal?: AbortSignal;
    }): Promise<AllDecision>;
    /**
     * Admits a call that several limits decide about: charges all of them or none, runs `body`, and settles them. A rule of a
     * rate without a cost is charged the estimate, and settled to `call.used`. A rule with a cost is a fixed price. A lease is
     * renewed at each third of its ttl, and released at the end.
     *
     * | `body` | rules without a cost | rules with a cost |
     * |---|---|---|
     * | sets `used`, and returns or throws | what was used | the cost |
     * | returns without `used` | the estimate | the cost |
     * | throws without `used` | nothing | nothing |
     *
     * If a lease is lost, or the signal is aborted, `call.signal` is aborted: pass it on to what the body calls. Then
     * `withAdmission` throws `LeaseLost`, or the signal's reason, also if the body returns normally. The rules are settled in
     * reverse order: list leases first, so that they are released last.
     *
     * @template T
     * @param {readonly (readonly [limit: Limit, key: Key, cost?: number])[]} rules
     * @param {{ estimate?: number, wait?: Time, id?: string, signal?: AbortSignal }} options
     * @param {(call: Admission) => T | Promise<T>} body
     * @returns {Promise<T>}
     */
    withAdmission<T>(rules: readonly (readonly [limit: Limit, key: Key, cost?: number])[], { estimate, wait, id, signal }: {
        estimate?: number;
        wait?: Time;
        id?: string;
        signal?: AbortSignal;
    }, body: (call: Admission) => T | Promise<T>): Promise<T>;
    /**
     * The limit with a memory for denials: after a denial, the server is not asked again before the wait is over, unless the
     * key changes. It opens two connections to each node, for client tracking.
     *
     * @param {RateLimit} limit
     */
    cached(limit: RateLimit): CachedLimit;
    /**
     * The limit with units that are fetched in batches, and spent in the process. What is left of a batch is given back when no
     * call has come for `idle` seconds.
     *
     * @param {RateLimit} limit
     * @param {{ batch?: number, idle?: Time }} [options]
     */
    wallet(limit: RateLimit, { batch, idle }?: {
        batch?: number;
        idle?: Time;
    }): Wallet;
    /**
     * @param {string} message
     * @internal
     */
    warn(message: string): void;
    /**
     * Ends the calls that wait, with `Down`. Gives back what is left in wallets, closes the connections of cached limits, and
     * waits for what is still under way in the background. It does not close the client.
     */
    close(): Promise<void>;
    #private;
}
/** What all limits have in common. */
export class Limit {
    /**
     * @param {Shared} shared
     * @param {string} name
     * @param {Policy} policy
     */
    constructor(shared: Shared, name: string, policy: Policy);
    /** The name of the limit. */
    name: string;
    /** The policy of the limit. */
    policy: Policy;
    /** @protected */
    protected get shared(): Shared;
    /**
     * The key on the server for a key of the program.
     *
     * @param {Key} key
     * @returns {Word}
     */
    keyOf(key: Key): Word;
    /**
     * The decision that a call would get. Takes nothing.
     *
     * @param {Key} key
     * @param {number} [cost]
     * @returns {Promise<Decision>}
     */
    peek(key: Key, cost?: number): Promise<Decision>;
    /**
     * @param {Word} key
     * @param {number} cost
     * @returns {Promise<Decision>}
     * @internal
     */
    peekWord(key: Word, cost: number): Promise<Decision>;
    /**
     * @param {Word} key
     * @param {number} cost
     * @internal
     */
    peekCall(key: Word, cost: number): {
        name: string;
        args: import("./policies.js").Word[];
        keys: import("./policies.js").Word[];
    };
    /**
     * Gives back what was charged with this id, or ends its lease. Null if the server does not know the id any more.
     *
     * @param {Key} key
     * @param {string} id
     * @returns {Promise<Decision | null>}
     */
    release(key: Key, id: string): Promise<Decision | null>;
    /**
     * @param {Word} key
     * @param {string} id
     * @param {number} [patienceMs]
     * @returns {Promise<Decision | null>}
     * @internal
     */
    releaseWord(key: Word, id: string, patienceMs?: number): Promise<Decision | null>;
    /**
     * Ends what was charged with an id. Does not throw: the body has ended, and its result counts more than its accounting.
     *
     * @param {Word} _key
     * @param {string} _id
     * @param {number} _granted
     * @param {number} _used
     * @param {number} [_patienceMs]
     * @returns {Promise<void>}
     * @internal
     */
    end(_key: Word, _id: string, _granted: number, _used: number, _patienceMs?: number): Promise<void>;
    /**
     * @param {Promise<Answer>} answer
     * @protected
     */
    protected decide(answer: Promise<Answer>): Promise<Decision>;
    /**
     * The decision when the server gives none, and calls are let through then.
     *
     * @param {number} cost
     * @internal
     */
    uncounted(cost: number): Decision;
    /**
     * Takes units, or waits for them in the key's queue.
     *
     * @param {Word} key
     * @param {Word[]} amount
     * @param {{ cost: number, waitMs: number, id?: string, ownId: boolean, signal?: AbortSignal }} options
     * @returns {Promise<Decision>}
     * @protected
     */
    protected queue(key: Word, amount: Word[], { cost, waitMs, id, ownId, signal }: {
        cost: number;
        waitMs: number;
        id?: string;
        ownId: boolean;
        signal?: AbortSignal;
    }): Promise<Decision>;
    #private;
}
/** A limit of a rate: fixed window, sliding window, GCRA or bucket. */
export class RateLimit extends Limit {
    /**
     * Takes units: all of them, or none. Sent once; with an `id` repeated when no reply comes, and charged once.
     *
     * @param {Key} key
     * @param {number} [cost]
     * @param {{ id?: string }} [options]
     */
    take(key: Key, cost?: number, { id }?: {
        id?: string;
    }): Promise<Decision>;
    /**
     * Takes as many units as fit, at most this number.
     *
     * @param {Key} key
     * @param {number} units
     * @param {{ id?: string }} [options]
     */
    takeUpTo(key: Key, units: number, { id }?: {
        id?: string;
    }): Promise<Decision>;
    /**
     * Takes units regardless of the state. What is above the capacity is a debt.
     *
     * @param {Key} key
     * @param {number} units
     */
    force(key: Key, units: number): Promise<Decision>;
    /**
     * Gives units back.
     *
     * @param {Key} key
     * @param {number} units
     */
    refund(key: Key, units: number): Promise<Decision>;
    /**
     * Takes a unit, and begins the window anew, with all that was counted in it; for `Fixed`.
     *
     * @param {Key} key
     * @returns {Promise<Decision>}
     * @internal
     */
    takeInNewWindow(key: Key): Promise<Decision>;
    /**
     * Deletes a key of this limit.
     *
     * @param {Key} key
     * @internal
     */
    forget(key: Key): Promise<void>;
    /**
     * Deletes all keys of this limit, on all nodes.
     *
     * @internal
     */
    forgetAll(): Promise<void>;
    /**
     * Takes units from a window that ends at this time; only for `Fixed`.
     *
     * @param {Key} key
     * @param {Date | number} time a date, or Unix seconds
     * @param {number} [cost]
     * @param {{ id?: string }} [options]
     * @returns {Promise<Decision>}
     */
    until(key: Key, time: Date | number, cost?: number, { id }?: {
        id?: string;
    }): Promise<Decision>;
    /**
     * Takes units, or waits for them in the key's queue, first come, first served. The wait has a connection of its own. An
     * abort of the signal ends it: the call leaves the queue, and nothing is charged.
     *
     * @param {Key} key
     * @param {Time} seconds how long it waits at most: up to a day
     * @param {number} [cost]
     * @param {{ id?: string, signal?: AbortSignal }} [options]
     */
    wait(key: Key, seconds: Time, cost?: number, { id, signal }?: {
        id?: string;
        signal?: AbortSignal;
    }): Promise<Decision>;
    /**
     * Books units that will be free in time, and sleeps until they may be used. It occupies no connection. An abort of the signal
     * gives the booking back.
     *
     * @param {Key} key
     * @param {Time} seconds how far ahead it may book: up to a day
     * @param {number} [cost]
     * @param {{ id?: string, signal?: AbortSignal }} [options]
     */
    reserve(key: Key, seconds: Time, cost?: number, { id, signal }?: {
        id?: string;
        signal?: AbortSignal;
    }): Promise<Decision>;
    /**
     * Sets a charge that was made with an id to what it really cost. Null if the server does not know the id any more.
     *
     * @param {Key} key
     * @param {string} id
     * @param {number} units
     * @returns {Promise<Decision | null>}
     */
    settle(key: Key, id: string, units: number): Promise<Decision | null>;
    /**
     * @param {Word} key
     * @param {string} id
     * @param {number} units
     * @param {number} [patienceMs]
     * @internal
     */
    settleOnce(key: Word, id: string, units: number, patienceMs?: number): Promise<{
        before: boolean;
        decision: Decision | null;
    }>;
    /**
     * Takes or waits, and throws `RateLimited` if the call is denied.
     *
     * @param {Key} key
     * @param {{ cost?: number, wait?: Time, id?: string, signal?: AbortSignal }} [options]
     */
    protect(key: Key, { cost, wait, id, signal }?: {
        cost?: number;
        wait?: Time;
        id?: string;
        signal?: AbortSignal;
    }): Promise<Decision>;
    /**
     * Charges an estimate, runs `body`, and settles the charge to `charge.used`.
     *
     * | `body` | the charge becomes |
     * |---|---|
     * | sets `used`, and returns or throws | what was used |
     * | returns without `used` | the estimate |
     * | throws without `used` | nothing |
     *
     * @template T
     * @param {Key} key
     * @param {number} estimate
     * @param {{ wait?: Time, id?: string, signal?: AbortSignal }} options
     * @param {(charge: Charge) => T | Promise<T>} body
     * @returns {Promise<T>}
     */
    withCharge<T>(key: Key, estimate: number, { wait, id, signal }: {
        wait?: Time;
        id?: string;
        signal?: AbortSignal;
    }, body: (charge: Charge) => T | Promise<T>): Promise<T>;
    #private;
}
/** A limit on what is held at a time. */
export class LeaseLimit extends Limit {
    /**
     * Holds a lease while `body` runs. It is renewed at each third of its ttl, and released at the end. If it is lost, or if
     * the signal is aborted, `lease.signal` is aborted: pass it on to what the body calls. Then `withLease` throws `LeaseLost`,
     * or the signal's reason, also if the body returns normally.
     *
     * @template T
     * @param {Key} key
     * @param {{ wait?: Time, cost?: number, id?: string, signal?: AbortSignal }} options
     * @param {(lease: Held) => T | Promise<T>} body
     * @returns {Promise<T>}
     */
    withLease<T>(key: Key, { wait, cost, id, signal }: {
        wait?: Time;
        cost?: number;
        id?: string;
        signal?: AbortSignal;
    }, body: (lease: Held) => T | Promise<T>): Promise<T>;
    /**
     * @param {Word} key
     * @param {string} id
     * @param {number} [_granted]
     * @param {number} [_used]
     * @param {number} [patienceMs]
     * @internal
     */
    end(key: Word, id: string, _granted?: number, _used?: number, patienceMs?: number): Promise<void>;
    /**
     * Renews a lease. Denied for ever (`wait` is null) if the id holds none.
     *
     * @param {Key} key
     * @param {string} id
     * @returns {Promise<Decision>}
     */
    renew(key: Key, id: string): Promise<Decision>;
    /**
     * @param {Word} key
     * @param {string} id
     * @param {number} [patienceMs]
     * @internal
     */
    renewWord(key: Word, id: string, patienceMs?: number): Promise<Decision>;
}
export type Call = import("./adapters/adapter.js").Call;
export type Adapter = import("./adapters/adapter.js").Adapter;
export type Client = import("./adapters/index.js").Client;
export type Answer = import("./caller.js").Answer;
export type Word = import("./policies.js").Word;
/**
 * text or bytes, not empty
 */
export type Key = string | Uint8Array;
/**
 * A duration: a number of seconds, or text such as `30s`.
 */
export type Time = number | string;
export type LimitsOptions = {
    /**
     * what each key on the server begins with
     */
    prefix?: string | undefined;
    /**
     * what happens if the server gives no decision: `closed`, the default, throws `Down`;
     * `open` lets the call through, uncounted
     */
    onDown?: "closed" | "open" | undefined;
    /**
     * seconds: how long a call waits for its reply, and how long a call with an id is repeated. 1
     * if omitted
     */
    patience?: number | undefined;
    /**
     * whether replicas may answer `peek`, if the client is set up for it
     */
    peekReplica?: boolean | undefined;
    /**
     * the default is `console.warn`
     */
    log?: ((message: string, error: unknown) => void) | undefined;
};
import { Caller } from './caller.js';
import { Policy } from './policies.js';
import { Lease } from './policies.js';
import { AllDecision } from './decision.js';
import { Admission } from './charges.js';
import { CachedLimit } from './denials.js';
import { Wallet } from './wallet.js';
import { Decision } from './decision.js';
import { Charge } from './charges.js';
import { Held } from './charges.js';
