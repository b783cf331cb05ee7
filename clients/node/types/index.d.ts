export { CachedLimit } from "./denials.js";
export { Wallet } from "./wallet.js";
export { AllDecision, Decision, headers } from "./decision.js";
export { Admission, Charge, Held } from "./charges.js";
export { Down, InvalidArgument, InvalidCost, InvalidId, InvalidKey, InvalidLimit, InvalidWait, LeaseLost, NoModule, NoReply, RateLimited, RateLimitError, Refused, UnexpectedReply, WrongType } from "./errors.js";
export { LeaseLimit, Limit, Limits, RateLimit } from "./limits.js";
export { Bucket, Fixed, Gcra, Lease, Policy, Slide } from "./policies.js";
