//! How a command accesses a key, in the flags of the module API.

use std::ffi::c_int;

use super::raw;

/// It reads the value.
pub(super) const READ: c_int = (raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS) as c_int;
/// It reads the value and changes it.
pub(super) const UPDATE: c_int =
    (raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE | raw::REDISMODULE_CMD_KEY_ACCESS) as c_int;
