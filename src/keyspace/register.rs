//! Telling the server about the commands.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_module::raw;
use redis_module::{Context, RedisString, Status};

use super::api::{self, log_notice, log_warning, server};
use super::config::{configure, Setting};
use super::docs::{Argument, Tree};
use super::effects::{self, Info};
use super::{reply, Server};

/// Where a command's keys are, and what it does with them.
#[derive(Clone, Copy)]
pub enum Keys {
    /// The argument of this index is a key, which is read and changed.
    Update(c_int),
    /// The argument of this index is a key, which is read.
    Read(c_int),
    /// The argument of this index is the number of keys that follow it, which are read and changed. The flags have
    /// `getkeys-api`: Redis 7.0 routes a module's command by nothing else.
    UpdateCounted(c_int),
    /// It has none.
    None,
}

/// A command, as the server is told of it.
pub struct Command {
    /// The name, in lower case.
    pub name: &'static CStr,
    /// What runs it: see [`handler`](super::handler).
    pub handler: extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int,
    /// The number of arguments with the name; negative: at least so many.
    pub arity: c_int,
    /// The command flags, as `RedisModule_CreateCommand` takes them.
    pub flags: &'static CStr,
    /// The keys.
    pub keys: Keys,
    /// One sentence.
    pub summary: &'static CStr,
    /// How the time it takes grows.
    pub complexity: &'static CStr,
    /// The arguments.
    pub arguments: fn() -> Vec<Argument>,
}

impl Command {
    /// Name and arguments, as a person would write them.
    pub fn syntax(&self) -> String {
        let name = self.name.to_string_lossy().to_uppercase();
        (self.arguments)().iter().fold(name, |line, argument| format!("{line} {argument}"))
    }
}

/// The category of all the module's commands in ACL rules, where the server has categories of modules (Redis 7.4, Valkey 8).
const CATEGORY: &CStr = c"ratelimit";

/// Registers the settings, the commands, and those of others (`compat`) that are wanted by then and whose names are free; an error,
/// which keeps the module from loading, is logged.
pub fn register<'c>(
    ctx: &Context,
    arguments: &[RedisString],
    settings: &'static [Setting],
    commands: &[Command],
    compat: impl Iterator<Item = &'c Command>,
) -> Status {
    let ctx = ctx.get_raw().cast();
    if let Some(function) = api::missing() {
        log_warning(
            ctx,
            &format!("redis-rl needs Redis 7.0.5 or newer, or Valkey 7.2 or newer: this server has no {function}"),
        );
        return Status::Err;
    }
    if let Some(command) = effects::COMMANDS.iter().find(|command| !knows(ctx, command)) {
        let command = command.to_string_lossy();
        log_warning(
            ctx,
            &format!(
                "redis-rl needs the command {command}, which this server has renamed or disabled: replicas and the append-only \
                 file are told by it what has changed"
            ),
        );
        return Status::Err;
    }
    // A key is opened for writing before it is known whether anything will be written: what watches it is told by
    // `Key::write`, and not by the mere opening.
    // SAFETY: `ctx` is the context of the module's loading, as in all of this file.
    unsafe {
        let moves = if moves_slots_whole(ctx) { HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 };
        let options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int | moves;
        server!(RedisModule_SetModuleOptions(ctx, options));
    }
    let arguments: Vec<&[u8]> = arguments.iter().map(RedisString::as_slice).collect();
    // SAFETY: as above.
    if !unsafe { configure(ctx, settings, &arguments) } {
        return Status::Err;
    }
    add_category(ctx);
    for command in commands {
        if !(create(ctx, command) && describe(ctx, command)) {
            log_warning(ctx, &format!("redis-rl could not register the command {}", command.name.to_string_lossy()));
            return Status::Err;
        }
    }
    for command in compat {
        let name = command.name.to_string_lossy();
        if !create(ctx, command) {
            log_notice(ctx, &format!("redis-rl does not provide the command {name}: the server has one of that name"));
        } else if !describe(ctx, command) {
            log_warning(ctx, &format!("redis-rl could not register the command {name}"));
            return Status::Err;
        }
    }
    effects::prepare();
    reply::start();
    Status::Ok
}

/// Gives back what the module holds of the server's, before it goes.
pub fn unregister() {
    effects::stop();
    reply::stop();
}

/// Valkey 9: the module does not mind that whole slots move (`CLUSTER MIGRATESLOTS`). All that lasts is in strings, and who
/// waits is sent to the new node when the queue is next looked at. In Redis the bit may come to mean something else.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Whether the server is a Valkey that asks for [`HANDLE_ATOMIC_SLOT_MIGRATION`].
fn moves_slots_whole(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: written by the server's loader before the module's own code runs, and only read here.
    let Some(all) = (unsafe { raw::RedisModule_GetModuleOptionsAll }) else { return false };
    // SAFETY: a function of the server's that takes nothing.
    let known = unsafe { all() };
    let server = Server::new(ctx);
    known & HANDLE_ATOMIC_SLOT_MIGRATION != 0 && Info::ask(&server, c"server").text(c"server_name") == Some(c"valkey")
}

/// Whether the server knows a command by its own name.
fn knows(ctx: *mut raw::RedisModuleCtx, command: &CStr) -> bool {
    // SAFETY: `ctx` is the context of the module's loading. The call has too few arguments, and does nothing: the server says
    // why by the error number.
    unsafe {
        let reply = server!(RedisModule_Call(ctx, command.as_ptr(), c"".as_ptr()));
        let unknown = reply.is_null() && std::io::Error::last_os_error().kind() == std::io::ErrorKind::NotFound;
        if !reply.is_null() {
            server!(RedisModule_FreeCallReply(reply));
        }
        !unknown
    }
}

/// Adds [`CATEGORY`], where the server lets it. One that an earlier loading of the module has added is still there, and can't be
/// added again.
fn add_category(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the pointer is written by the server's loader before the module's own code runs, and only read here; `ctx` is the
    // context of the module's loading.
    unsafe {
        if let Some(add) = raw::RedisModule_AddACLCategory {
            add(ctx, CATEGORY.as_ptr());
        }
    }
}

/// Puts a command into the categories of ACL rules that its flags say, as the server does with its own, and into [`CATEGORY`] if
/// there is one. Before 7.2 no module's command is in any.
fn set_categories(handle: *mut raw::RedisModuleCommand, command: &Command) -> bool {
    const OF_FLAGS: [(&[u8], &str); 4] =
        [(b"write", "write"), (b"readonly", "read"), (b"fast", "fast"), (b"admin", "admin dangerous")];
    // SAFETY: as above.
    let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return true };
    let set = |categories: &str| {
        // SAFETY: as above; the command has been created.
        CString::new(categories)
            .is_ok_and(|categories| unsafe { set(handle, categories.as_ptr()) == raw::REDISMODULE_OK as c_int })
    };
    let has = |flag: &[u8]| command.flags.to_bytes().split(|&byte| byte == b' ').any(|word| word == flag);
    let slow = (!has(b"fast")).then_some("slow");
    let of_flags = OF_FLAGS.iter().filter(|(flag, _)| has(flag)).map(|&(_, category)| category);
    let of_flags: Vec<&str> = of_flags.chain(slow).collect();
    let of_flags = of_flags.join(" ");
    set(&format!("{of_flags} {}", CATEGORY.to_string_lossy())) || set(&of_flags)
}

/// Creates the command, unless its name is taken.
fn create(ctx: *mut raw::RedisModuleCtx, command: &Command) -> bool {
    let (first, step) = match command.keys {
        Keys::Update(pos) | Keys::Read(pos) => (pos, 1),
        Keys::UpdateCounted(_) | Keys::None => (0, 0),
    };
    let (name, flags) = (command.name.as_ptr(), command.flags.as_ptr());
    // SAFETY: `ctx` is the context of the module's loading. The server copies the texts.
    let status = unsafe { server!(RedisModule_CreateCommand(ctx, name, Some(command.handler), flags, first, first, step)) };
    status == raw::REDISMODULE_OK as c_int
}

/// Tells the server all about a command that it has.
fn describe(ctx: *mut raw::RedisModuleCtx, command: &Command) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let (pos, access, counted) = match command.keys {
        Keys::Update(pos) => (pos, raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE, false),
        Keys::Read(pos) => (pos, raw::REDISMODULE_CMD_KEY_RO, false),
        Keys::UpdateCounted(pos) => (pos, raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_UPDATE, true),
        Keys::None => (0, 0, false),
    };
    let arguments = (command.arguments)();
    let mut tree = Tree::default();
    // SAFETY: the structures are C's, of integers, pointers and unions of integers: all zero is their empty value, and ends
    // an array of them. The server copies what they point to before it returns.
    unsafe {
        let handle = server!(RedisModule_GetCommand(ctx, command.name.as_ptr()));
        if handle.is_null() {
            return false;
        }
        let mut key: raw::RedisModuleCommandKeySpec = std::mem::zeroed();
        key.flags = (access | raw::REDISMODULE_CMD_KEY_ACCESS).into();
        key.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        key.bs.index.pos = pos;
        if counted {
            key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            key.fk.keynum =
                raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 { keynumidx: 0, firstkey: 1, keystep: 1 };
        } else {
            key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            key.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
        }
        let mut keys = [key, std::mem::zeroed()];
        let info = raw::RedisModuleCommandInfo {
            version: &version,
            summary: command.summary.as_ptr(),
            complexity: command.complexity.as_ptr(),
            since: c"0.1.0".as_ptr(),
            history: ptr::null_mut(),
            tips: ptr::null(),
            arity: command.arity,
            key_specs: if pos == 0 { ptr::null_mut() } else { keys.as_mut_ptr() },
            args: tree.list(&arguments),
        };
        set_categories(handle, command) && server!(RedisModule_SetCommandInfo(handle, &info)) == raw::REDISMODULE_OK as c_int
    }
}
