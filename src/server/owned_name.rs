//! The name of a key, as a string of the server that the module makes and frees. A callback without a call needs it.

use super::{api, raw, Server, ServerString};

/// A string that the module made, and frees.
pub(super) struct OwnedName<'c> {
    server: &'c Server<'c>,
    pub(super) name: ServerString,
}

impl<'c> OwnedName<'c> {
    pub(super) fn new(server: &'c Server<'c>, name: &[u8]) -> Self {
        // SAFETY: the context is live as long as `server`. The server copies the name; dropping the result frees the copy.
        let name = unsafe { api!(RedisModule_CreateString(server.ctx, name.as_ptr().cast(), name.len())) };
        Self { server, name }
    }
}

impl Drop for OwnedName<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` made the string, it is freed only here, and its users declare it so that it is dropped after its last use.
        unsafe { api!(RedisModule_FreeString(self.server.ctx, self.name)) };
    }
}
