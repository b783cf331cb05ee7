//! Sections of `INFO`, from which the module reads facts that no function of the module API returns.

use std::ffi::CStr;

use super::{api, raw, Server};

/// One section of `INFO`, as of the moment it was read.
pub(super) struct Info<'s> {
    server: &'s Server<'s>,
    data: *mut raw::RedisModuleServerInfoData,
}

impl<'s> Info<'s> {
    /// Reads a section.
    pub(super) fn section(server: &'s Server<'s>, name: &CStr) -> Self {
        // SAFETY: the context is live as long as `server`, and the server copies the name. Dropping `self` frees the data.
        let data = unsafe { api!(RedisModule_GetServerInfo(server.ctx, name.as_ptr())) };
        Self { server, data }
    }

    /// Whether the server is a Valkey. Newer numbers of options and events mean something else there than in Redis.
    pub(super) fn is_valkey(server: &Server<'_>) -> bool {
        Info::section(server, c"server").text(c"server_name") == Some(c"valkey")
    }

    /// Returns the text of a field; `None` if the section has no such field.
    pub(super) fn text(&self, field: &CStr) -> Option<&CStr> {
        // SAFETY: `data` is freed only when `self` is dropped. The text of a field ends with a NUL and lives as long as `data`.
        unsafe {
            let text = api!(RedisModule_ServerInfoGetFieldC(self.data, field.as_ptr()));
            (!text.is_null()).then(|| CStr::from_ptr(text))
        }
    }

    /// Returns the number in a field; `None` if the section has no such field or it holds no whole number.
    pub(super) fn number(&self, field: &CStr) -> Option<i64> {
        self.text(field)?.to_str().ok()?.parse().ok()
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: `data` came from `RedisModule_GetServerInfo` and is freed only here; what `text` returns borrows from `self`.
        unsafe { api!(RedisModule_FreeServerInfo(self.server.ctx, self.data)) };
    }
}
