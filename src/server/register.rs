//! Describes the module to the server when it is loaded: its options, configuration parameters and commands.

use std::ffi::{c_int, CStr, CString};
use std::ptr;

use redis_module::{basic_info_command_handler, Context, InfoContext, RedisString, Status};

use super::api::missing;
use super::arguments::RawArguments;
use super::config::configure;
use super::key_flags::{READ, UPDATE};
use super::shortcuts::{self, reply};
use super::{api, effects, forkless, propagation, raw, Argument, Ctx, Info, Parameter, Server, ServerString};

/// Where a command's keys are among its arguments, and how the command accesses them.
#[derive(Clone, Copy)]
pub enum KeySpec {
    /// The argument of this index is a key, which the command reads and writes.
    ReadWrite(c_int),
    /// The argument of this index is a key, which the command reads.
    ReadOnly(c_int),
    /// The argument of this index is the number of keys that follow it, which the command reads and writes. The command must have
    /// the flag `getkeys-api`, since Redis 7.0 does not find the keys of a module's command in any other way.
    CountedReadWrite(c_int),
    /// The argument of the first index is a key, which the command reads and writes. That of the second is the number of keys that follow
    /// it, which the command reads. The command must have the flag `getkeys-api`, as with [`Self::CountedReadWrite`].
    ReadWriteAndCountedReadOnly(c_int, c_int),
    /// The command has no keys.
    None,
}

/// A row in the table of commands: the description of a command for the server.
pub struct Command {
    /// The name, in lower case.
    pub name: &'static CStr,
    /// The function that the server calls: [`run_command`](super::run_command) of the command's handler.
    pub callback: unsafe extern "C" fn(Ctx, *mut ServerString, c_int) -> c_int,
    /// The number of arguments including the name. A negative number -n means at least n.
    pub arity: c_int,
    /// The command flags, as `RedisModule_CreateCommand` takes them.
    pub flags: &'static CStr,
    /// The keys.
    pub keys: KeySpec,
    /// One sentence for `COMMAND DOCS` and `RL.HELP`.
    pub summary: &'static CStr,
    /// The time complexity.
    pub complexity: &'static CStr,
    /// Returns the arguments.
    pub arguments: fn() -> Vec<Argument>,
    /// What the command replies, in lines for `RL.HELP`.
    pub reply: &'static [&'static str],
    /// A call for `RL.HELP`.
    pub example: &'static str,
}

impl Command {
    /// Returns the syntax line: the name and the arguments, for a person to read.
    pub fn syntax(&self) -> String {
        let name = self.name.to_string_lossy().to_uppercase();
        (self.arguments)().iter().fold(name, |line, argument| format!("{line} {argument}"))
    }
}

/// The ACL category of all commands of the module, on servers where modules can add categories (Redis 7.4, Valkey 8).
const CATEGORY: &CStr = c"ratelimit";

/// Registers the configuration parameters, then `commands`, then those of `compat` whose names are free. `compat` is iterated after
/// the parameters have got their values. If this fails, it logs the reason, and the server does not load the module.
pub fn register<'c>(
    ctx: &Context,
    arguments: &[RedisString],
    parameters: &'static [Parameter],
    commands: &[Command],
    compat: impl Iterator<Item = &'c Command>,
) -> Status {
    let server = &Server::from_context(ctx);
    if let Some(function) = missing() {
        let needs = "redis-rl needs Redis 7.0.5 or newer, or Valkey 7.2 or newer";
        server.log_warning(&format!("{needs}: this server has no {function}"));
        return Status::Err;
    }
    if let Some(command) = effects::COMMANDS.iter().find(|command| !knows(server, command)) {
        let needs = format!("redis-rl needs the command {}", command.to_string_lossy());
        let reason = "redis-rl uses this command to replicate its changes to replicas and the append-only file";
        server.log_warning(&format!("{needs}, which this server has renamed or disabled: {reason}"));
        return Status::Err;
    }
    set_options(server);
    raw::register_info_function(server.ctx, Some(info));
    let arguments: Vec<&[u8]> = arguments.iter().map(RedisString::as_slice).collect();
    if !configure(server, parameters, &arguments) {
        return Status::Err;
    }
    add_category(server);
    let required = commands.iter().map(|command| (command, true));
    for (command, is_required) in required.chain(compat.map(|command| (command, false))) {
        let name = command.name.to_string_lossy();
        let is_created = create(server, command);
        if !is_created && !is_required {
            let message = format!("redis-rl does not provide the command {name}: the server has one of that name");
            server.log(c"notice", &message);
        } else if !is_created || !describe(server, command) {
            server.log_warning(&format!("redis-rl could not register the command {name}"));
            return Status::Err;
        }
    }
    effects::start();
    propagation::reset();
    shortcuts::start(server);
    reply::start();
    Status::Ok
}

/// Frees what [`register`] allocated, before the server unloads the module.
pub fn unregister(server: &Server<'_>) {
    effects::stop();
    propagation::reset();
    reply::stop(server);
}

/// Declares to the server what it switches off for all while a loaded module has not declared it.
fn set_options(server: &Server<'_>) {
    // The module opens a key for writing before it is known whether the key will change. So the server must not treat the
    // opening as a change: `WriteKey` reports changes itself.
    let signals = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int;
    // A replica may serve reads while it loads (`repl-diskless-load swapdb`): `RL.PEEK` and `RL.INSPECT` read only keys, and
    // `subscribe_to_server_events` covers the exchange of all keys at the end.
    let loads = raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int;
    let known = known_options(server);
    // Whole slots may be moved (`CLUSTER MIGRATESLOTS`): all persistent state is in strings, and blocked clients are sent to the new
    // node when their line is next served.
    let moves = known & (1 << 5);
    let forkless = known & forkless::OPTION;
    forkless::start(forkless != 0);
    // SAFETY: the context is live.
    unsafe { api!(RedisModule_SetModuleOptions(server.ctx, signals | loads | moves | forkless)) };
}

/// The server calls this for `INFO rl`, and while it writes the report of a crash. To that report the module adds nothing. The crate
/// `redis-module` registers a function that adds a backtrace there, and this one replaces it: a backtrace allocates memory, which is
/// not safe after a crash. Valkey 8.1 then crashed again, or waited for the allocator's lock for ever.
extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    if for_crash_report == 0 {
        basic_info_command_handler(&InfoContext::new(ctx), false);
    }
}

/// Returns the options that this server knows, if it is a Valkey; 0 otherwise, since bits from 4 on may mean something else in Redis.
fn known_options(server: &Server<'_>) -> c_int {
    // SAFETY: the server's loader writes the pointer before any code of the module runs; afterwards it is only read.
    let Some(all) = (unsafe { raw::RedisModule_GetModuleOptionsAll }) else { return 0 };
    if !Info::is_valkey(server) {
        return 0;
    }
    // SAFETY: the function has no requirements.
    unsafe { all() }
}

/// Whether the server knows a command by this name.
fn knows(server: &Server<'_>, command: &CStr) -> bool {
    // SAFETY: the context is live. Without arguments the call fails and changes nothing; the error number shows whether the
    // server knows the command. A reply is freed once.
    unsafe {
        let reply = api!(RedisModule_Call(server.ctx, command.as_ptr(), c"".as_ptr()));
        let unknown = reply.is_null() && std::io::Error::last_os_error().kind() == std::io::ErrorKind::NotFound;
        if !reply.is_null() {
            api!(RedisModule_FreeCallReply(reply));
        }
        !unknown
    }
}

/// Adds [`CATEGORY`] if the server supports it. The result does not matter: if the module was loaded before, the category is
/// still there, and adding it again fails.
fn add_category(server: &Server<'_>) {
    // SAFETY: the server's loader writes the pointer before any code of the module runs; afterwards it is only read. The context
    // is live.
    unsafe {
        if let Some(add) = raw::RedisModule_AddACLCategory {
            add(server.ctx, CATEGORY.as_ptr());
        }
    }
}

/// Adds a command to the ACL categories that follow from its flags, as the server does for its own commands, and to
/// [`CATEGORY`] if that exists. Servers before 7.2 have no ACL categories for module commands.
fn set_categories(handle: *mut raw::RedisModuleCommand, command: &Command) -> bool {
    const OF_FLAGS: [(&[u8], &str); 4] =
        [(b"write", "write"), (b"readonly", "read"), (b"fast", "fast"), (b"admin", "admin dangerous")];
    // SAFETY: the server's loader writes the pointer before any code of the module runs; afterwards it is only read.
    let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return true };
    let set = |categories: &str| {
        let Ok(categories) = CString::new(categories) else { return false };
        // SAFETY: `describe` checked that `handle` is a command.
        unsafe { set(handle, categories.as_ptr()) == raw::REDISMODULE_OK as c_int }
    };
    let has = |flag: &[u8]| command.flags.to_bytes().split(|&byte| byte == b' ').any(|word| word == flag);
    let slow = (!has(b"fast")).then_some("slow");
    let of_flags = OF_FLAGS.iter().filter(|(flag, _)| has(flag)).map(|&(_, category)| category);
    let of_flags: Vec<&str> = of_flags.chain(slow).collect();
    let of_flags = of_flags.join(" ");
    set(&format!("{of_flags} {}", CATEGORY.to_string_lossy())) || set(&of_flags)
}

/// Creates a command. Returns whether the name was free.
fn create(server: &Server<'_>, command: &Command) -> bool {
    let (first, step) = match command.keys {
        KeySpec::ReadWrite(pos) | KeySpec::ReadOnly(pos) => (pos, 1),
        KeySpec::CountedReadWrite(_) | KeySpec::ReadWriteAndCountedReadOnly(..) | KeySpec::None => (0, 0),
    };
    let (name, callback, flags) = (command.name.as_ptr(), Some(command.callback), command.flags.as_ptr());
    // SAFETY: the context is live, and the server copies the texts.
    let status = unsafe { api!(RedisModule_CreateCommand(server.ctx, name, callback, flags, first, first, step)) };
    status == raw::REDISMODULE_OK as c_int
}

/// Gives the server the description and the ACL categories of a command that was created.
fn describe(server: &Server<'_>, command: &Command) -> bool {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let arguments = (command.arguments)();
    let mut raw_arguments = RawArguments::default();
    // An empty structure ends the array.
    let mut keys = key_specs(command.keys);
    keys.push(empty_key_spec());
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: if keys.len() > 1 { keys.as_mut_ptr() } else { ptr::null_mut() },
        args: raw_arguments.list(&arguments),
    };
    // SAFETY: the context is live. Everything that `info` points to lives until the end of this function, and the server copies it
    // before it returns.
    unsafe {
        let handle = api!(RedisModule_GetCommand(server.ctx, command.name.as_ptr()));
        !handle.is_null()
            && set_categories(handle, command)
            && api!(RedisModule_SetCommandInfo(handle, &info)) == raw::REDISMODULE_OK as c_int
    }
}

/// Returns the key specifications in the form that the module API takes.
fn key_specs(keys: KeySpec) -> Vec<raw::RedisModuleCommandKeySpec> {
    match keys {
        KeySpec::ReadWrite(pos) => vec![key_spec(pos, UPDATE, false)],
        KeySpec::ReadOnly(pos) => vec![key_spec(pos, READ, false)],
        KeySpec::CountedReadWrite(pos) => vec![key_spec(pos, UPDATE, true)],
        KeySpec::ReadWriteAndCountedReadOnly(pos, count) => vec![key_spec(pos, UPDATE, false), key_spec(count, READ, true)],
        KeySpec::None => Vec::new(),
    }
}

/// Describes the key at argument `pos`, or if `counted` those whose number is this argument.
fn key_spec(pos: c_int, flags: c_int, counted: bool) -> raw::RedisModuleCommandKeySpec {
    let mut key = empty_key_spec();
    key.flags = flags as _;
    key.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    key.bs.index.pos = pos;
    if counted {
        key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
        key.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 { keynumidx: 0, firstkey: 1, keystep: 1 };
    } else {
        key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        key.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
    }
    key
}

fn empty_key_spec() -> raw::RedisModuleCommandKeySpec {
    // SAFETY: the C structure consists of integers, pointers and unions of integers, for which all bits zero is a valid value.
    unsafe { std::mem::zeroed() }
}
