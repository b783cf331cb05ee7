//! The functions of the module API: calls them, and checks that the server has them. Also helpers that all callbacks use.

use std::ffi::{CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

use redis_module::raw;

use super::Server;

/// Calls a function of the module API. [`missing`] has checked at load time that the server has it.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match raw::$function {
            Some(function) => function($($argument),*),
            // The module does not load on a server without this function.
            None => unreachable!(concat!(stringify!($function), " is missing")),
        }
    };
}
pub(super) use api;

macro_rules! required {
    ($($function:ident,)*) => {
        /// Returns the name of a function that the module needs and this server lacks; `None` if the server has all of them.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the server's loader writes these pointers before any code of the module runs; afterwards they are only read.
            unsafe { [$((stringify!($function), { let pointer = raw::$function; pointer.is_some() }),)*] }
                .into_iter()
                .find_map(|(name, found)| (!found).then_some(name))
        }
    };
}

required! {
    RedisModule_CreateCommand,
    RedisModule_GetCommand,
    RedisModule_SetCommandInfo,
    RedisModule_SetModuleOptions,
    RedisModule_StringPtrLen,
    RedisModule_OpenKey,
    RedisModule_KeyExists,
    RedisModule_CloseKey,
    RedisModule_KeyType,
    RedisModule_ValueLength,
    RedisModule_StringDMA,
    RedisModule_StringTruncate,
    RedisModule_SetAbsExpire,
    RedisModule_DeleteKey,
    RedisModule_SignalModifiedKey,
    RedisModule_Replicate,
    RedisModule_ReplicateVerbatim,
    RedisModule_RegisterCommandFilter,
    RedisModule_UnregisterCommandFilter,
    RedisModule_CommandFilterArgGet,
    RedisModule_GetServerInfo,
    RedisModule_ServerInfoGetFieldC,
    RedisModule_FreeServerInfo,
    RedisModule_IsKeysPositionRequest,
    RedisModule_KeyAtPos,
    RedisModule_ReplyWithArray,
    RedisModule_ReplyWithMap,
    RedisModule_ReplyWithStringBuffer,
    RedisModule_ReplyWithSimpleString,
    RedisModule_ReplyWithNull,
    RedisModule_ReplyWithLongLong,
    RedisModule_ReplyWithError,
    RedisModule_GetAbsExpire,
    RedisModule_CreateString,
    RedisModule_FreeString,
    RedisModule_GetSelectedDb,
    RedisModule_SelectDb,
    RedisModule_GetContextFlags,
    RedisModule_AvoidReplicaTraffic,
    RedisModule_Call,
    RedisModule_RegisterNumericConfig,
    RedisModule_RegisterEnumConfig,
    RedisModule_LoadConfigs,
    RedisModule_GetNotifyKeyspaceEvents,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_FreeCallReply,
    RedisModule_CallReplyType,
    RedisModule_CallReplyStringPtr,
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyProto,
    RedisModule_ReplyWithCallReply,
    RedisModule_GetThreadSafeContext,
    RedisModule_FreeThreadSafeContext,
    RedisModule_BlockClient,
    RedisModule_UnblockClient,
    RedisModule_SetDisconnectCallback,
    RedisModule_GetBlockedClientPrivateData,
    RedisModule_GetBlockedClientHandle,
    RedisModule_CreateTimer,
    RedisModule_StopTimer,
    RedisModule_SubscribeToKeyspaceEvents,
    RedisModule_SubscribeToServerEvent,
}

/// Returns the bytes of a string that the server owns.
///
/// # Safety
/// `string` must be a valid string that nobody changes or frees during `'a`.
#[inline(always)]
pub(super) unsafe fn string_bytes<'a>(string: *mut raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the caller vouches for the string. The server returns a pointer to its `len` bytes, and never null.
    unsafe {
        let bytes = api!(RedisModule_StringPtrLen(string, &mut len));
        std::slice::from_raw_parts(bytes.cast(), len)
    }
}

/// Runs the body of a callback that has nothing to reply. A panic ends here, because one that unwinds into the server's C code
/// aborts the server.
pub(super) fn contain_panic(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Logs a warning. The message must not contain bytes that a client sent, so that clients cannot forge log lines.
pub(super) fn log_warning(server: &Server<'_>, message: &str) {
    log(server, c"warning", message);
}

/// Logs a notice: as [`log_warning`], for what is not a fault.
pub(super) fn log_notice(server: &Server<'_>, message: &str) {
    log(server, c"notice", message);
}

fn log(server: &Server<'_>, level: &CStr, message: &str) {
    let Ok(message) = CString::new(message) else { return };
    // SAFETY: the context is live as long as `server`. The format `%s` takes exactly the one string that follows it.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(server.ctx, level.as_ptr(), c"%s".as_ptr(), message.as_ptr());
        }
    }
}
