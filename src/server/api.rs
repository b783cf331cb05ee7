//! The functions of the module API: calls them, and checks that the server has them. Also helpers that all callbacks use.

use std::panic::{catch_unwind, AssertUnwindSafe};

use super::raw;

/// The context in which the server calls the module.
pub(super) type Ctx = *mut raw::RedisModuleCtx;

/// A string of the server.
pub(super) type ServerString = *mut raw::RedisModuleString;

/// The functions of the module API that [`api!`] calls: the name, and whether the server has it. The macro adds each to this list.
#[linkme::distributed_slice]
pub(super) static API_FUNCTIONS: [(&'static str, fn() -> bool)];

/// Calls a function of the module API. [`missing`] has checked at load time that the server has it.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        #[linkme::distributed_slice($crate::server::api::API_FUNCTIONS)]
        static FUNCTION: (&str, fn() -> bool) = (stringify!($function), || {
            // SAFETY: the server's loader writes the pointer before any code of the module runs; afterwards it is only read.
            unsafe { let pointer = raw::$function; pointer.is_some() }
        });
        match raw::$function {
            Some(function) => function($($argument),*),
            // The module does not load on a server without this function.
            None => unreachable!(concat!(stringify!($function), " is missing")),
        }
    }};
}
pub(super) use api;

/// Returns the name of a function that the module needs and this server lacks; `None` if the server has all of them.
pub(super) fn missing() -> Option<&'static str> {
    API_FUNCTIONS.iter().find(|(_, is_there)| !is_there()).map(|&(name, _)| name)
}

/// Returns the bytes of a string that the server owns.
///
/// # Safety
/// `string` must be a valid string that nobody changes or frees during `'a`.
#[inline(always)]
pub(super) unsafe fn string_bytes<'a>(string: ServerString) -> &'a [u8] {
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

#[cfg(test)]
mod tests {
    use super::API_FUNCTIONS;

    #[test]
    fn the_linker_collects_the_functions() {
        for wanted in
            ["RedisModule_OpenKey", "RedisModule_BlockClient", "RedisModule_Replicate", "RedisModule_CreateCommand"]
        {
            assert!(API_FUNCTIONS.iter().any(|&(name, _)| name == wanted), "{wanted}");
        }
    }
}
