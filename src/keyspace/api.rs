//! The server's functions, found by name when the module loads.

use std::ffi::{CStr, CString};

use redis_module::raw;

/// Calls a function of the server that [`missing`] has found to exist.
macro_rules! server {
    ($function:ident($($argument:expr),* $(,)?)) => {
        match raw::$function {
            Some(function) => function($($argument),*),
            // The module did not load without it. The entry point would turn this into an error reply.
            None => unreachable!(concat!(stringify!($function), " is missing")),
        }
    };
}
pub(super) use server;

macro_rules! required {
    ($($function:ident,)*) => {
        /// The first function that the module needs and that this server does not have.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the pointers are written by the server's loader before the module's own code runs, and only read here.
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

/// Writes a line to the server's log. Never of a client's bytes: a log is not theirs to write.
pub(super) fn log_warning(ctx: *mut raw::RedisModuleCtx, message: &str) {
    log(ctx, c"warning", message);
}

/// [`log_warning`], for what is no fault.
pub(super) fn log_notice(ctx: *mut raw::RedisModuleCtx, message: &str) {
    log(ctx, c"notice", message);
}

fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, message: &str) {
    let Ok(message) = CString::new(message) else { return };
    // SAFETY: `ctx` is the live context of the call that logs, and the format takes the one string that follows.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ctx, level.as_ptr(), c"%s".as_ptr(), message.as_ptr());
        }
    }
}
