//! However a handle ends, the client gets exactly one reply. The tests replace the functions of the server that this calls.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::server::{run_command, CommandHandler};

/// The calls of the replaced functions.
struct Calls {
    /// The data that the client was unblocked with, by address, each time that it was unblocked.
    unblocked: Vec<usize>,
    /// The data that the server passes to the reply callback.
    data: usize,
    errors: usize,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { unblocked: Vec::new(), data: 0, errors: 0 });

/// The tests share [`CALLS`] and the server's functions, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

/// The handle that the handlers below return.
static HELD: Mutex<Option<BlockedClient<Echo>>> = Mutex::new(None);

/// The numbers with which clients were replied to.
static REPLIED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn block(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleCmdFunc,
    _: raw::RedisModuleCmdFunc,
    _: Option<unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void)>,
    _: std::ffi::c_longlong,
) -> *mut raw::RedisModuleBlockedClient {
    ptr::dangling_mut()
}

unsafe extern "C" fn set_disconnect(_: *mut raw::RedisModuleBlockedClient, _: raw::RedisModuleDisconnectFunc) {}

unsafe extern "C" fn unblock(_: *mut raw::RedisModuleBlockedClient, data: *mut c_void) -> c_int {
    let mut calls = lock(&CALLS);
    calls.unblocked.push(data.addr());
    calls.data = data.expose_provenance();
    0
}

unsafe extern "C" fn private_data(_: *mut raw::RedisModuleCtx) -> *mut c_void {
    ptr::with_exposed_provenance_mut(lock(&CALLS).data)
}

unsafe extern "C" fn handle(_: *mut raw::RedisModuleCtx) -> *mut raw::RedisModuleBlockedClient {
    ptr::dangling_mut()
}

unsafe extern "C" fn error(_: *mut raw::RedisModuleCtx, _: *const std::ffi::c_char) -> c_int {
    lock(&CALLS).errors += 1;
    0
}

/// Replies with the answer, a number.
struct Echo;

impl ReplyHandler for Echo {
    type Answer = u32;

    fn reply(_: &Call<'_>, answer: u32) {
        lock(&REPLIED).push(answer);
    }

    fn on_timeout(call: &Call<'_>, _: ClientId) -> Option<BlockedClient<Self>> {
        let client = lock(&HELD).take();
        Self::reply(call, 0);
        client
    }

    fn on_disconnect(_: &Server<'_>, _: ClientId) -> Option<BlockedClient<Self>> {
        lock(&HELD).take()
    }
}

/// Blocks its client, then panics.
struct Panics;

impl CommandHandler for Panics {
    fn run(call: &Call<'_>) {
        let _client = BlockedClient::<Echo>::block(call);
        panic!("in a test");
    }
}

fn start() -> MutexGuard<'static, ()> {
    let turn = lock(&TURN);
    // SAFETY: only these tests use the server's functions, and they take turns.
    unsafe {
        raw::RedisModule_BlockClient = Some(block);
        raw::RedisModule_SetDisconnectCallback = Some(set_disconnect);
        raw::RedisModule_UnblockClient = Some(unblock);
        raw::RedisModule_GetBlockedClientPrivateData = Some(private_data);
        raw::RedisModule_GetBlockedClientHandle = Some(handle);
        raw::RedisModule_ReplyWithError = Some(error);
    }
    *lock(&CALLS) = Calls { unblocked: Vec::new(), data: 0, errors: 0 };
    lock(&REPLIED).clear();
    turn
}

type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Calls a callback as the server does, for a call without arguments.
fn call(callback: Callback) {
    let mut arguments = [];
    // SAFETY: the replaced functions do not use the context, and there are no arguments.
    unsafe { callback(ptr::null_mut(), arguments.as_mut_ptr(), 0) };
}

fn blocked() -> BlockedClient<Echo> {
    // SAFETY: the replaced functions do not use the context, and there are no arguments.
    let call = unsafe { Call::new(Server::new(ptr::null_mut()), ptr::dangling_mut(), 0) };
    BlockedClient::block(&call).expect("a blocked client")
}

/// Makes the server process the unblocked client. Returns the replies: the numbers, and the number of errors.
fn replies() -> (Vec<u32>, usize) {
    call(reply_callback::<Echo>);
    let calls = lock(&CALLS);
    assert_eq!(calls.unblocked.len(), 1, "a client is unblocked once");
    // SAFETY: the data comes from `unblock` with the same handler, and is freed once.
    unsafe { free_data::<Echo>(ptr::null_mut(), ptr::with_exposed_provenance_mut(calls.data)) };
    (lock(&REPLIED).clone(), calls.errors)
}

#[test]
fn an_answer_is_replied() {
    let _turn = start();
    blocked().reply_with(7);
    assert_eq!(replies(), (vec![7], 0));
}

#[test]
fn a_handle_that_is_dropped_replies_an_error() {
    let _turn = start();
    drop(blocked());
    assert_eq!(replies(), (vec![], 1));
}

#[test]
fn a_panic_after_the_client_was_blocked_replies_one_error() {
    let _turn = start();
    call(run_command::<Panics>);
    assert_eq!(lock(&CALLS).errors, 0, "the client is blocked: its reply comes from the reply callback");
    assert_eq!(replies(), (vec![], 1));
}

#[test]
fn a_time_out_replies_and_unblocks_without_another_reply() {
    let _turn = start();
    *lock(&HELD) = Some(blocked());
    call(timeout_callback::<Echo>);
    assert_eq!(lock(&CALLS).unblocked, [0]);
    assert_eq!(replies(), (vec![0], 0));
}

#[test]
fn a_client_that_disconnects_is_unblocked_without_a_reply() {
    let _turn = start();
    *lock(&HELD) = Some(blocked());
    // SAFETY: the replaced functions use neither the context nor the client.
    unsafe { disconnect_callback::<Echo>(ptr::null_mut(), ptr::dangling_mut()) };
    assert_eq!(lock(&CALLS).unblocked, [0]);
    assert_eq!(replies(), (vec![], 0));
}

#[test]
fn a_panic_of_the_owner_leaves_no_client_waiting() {
    let _turn = start();
    let clients = vec![blocked()];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _clients = clients;
        panic!("in a test");
    }));
    assert!(panicked.is_err());
    assert_eq!(replies(), (vec![], 1));
}
