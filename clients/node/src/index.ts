export { addressKey } from './web.js';
export { Admission, Charge, Held } from './blocks.js';
export { AllDecision, Decision, headers, RateLimited } from './decision.js';
export {
  Closed, InvalidArgument, InvalidCost, InvalidId, InvalidKey, InvalidLimit, InvalidWait, LeaseLost, NoModule, NotAllowed,
  RateLimitError, Unavailable, UnexpectedReply, WrongType,
} from './errors.js';
export { LeaseLimit, RateLimit } from './limit.js';
export { Limits } from './limits.js';
export { Bucket, Fixed, Gcra, Lease, Named, Slide } from './policies.js';
export { Wallet } from './wallet.js';
