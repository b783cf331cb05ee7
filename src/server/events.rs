//! The timer, and the events that the server fires.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::{api, contain_panic, propagation, raw, string_bytes, write_refusals, Ctx, Info, Server, ServerString};

/// Handles the timer and the server's events. A panic ends in the callback that calls the handler.
pub trait EventHandler {
    /// Called when the timer has fired.
    fn on_timer(server: &Server<'_>);

    /// Called when a key of the selected database has changed: see [`Server::subscribe_to_key_events`].
    fn on_key_event(server: &Server<'_>, name: &[u8]);

    /// Called when a database was flushed or swapped, all keys were exchanged after a load, the server has become a primary or a
    /// replica, or `CLUSTER MIGRATION` has moved slots.
    fn on_database_event(server: &Server<'_>);

    /// Called by the server's periodic work, ten times a second unless `hz` says otherwise. Unlike timers, it keeps this pace
    /// when the wall clock is set.
    fn on_cron(server: &Server<'_>);
}

/// A timer that was started.
#[derive(Clone, Copy, Debug)]
pub struct Timer(raw::RedisModuleTimerID);

impl Server<'_> {
    /// Starts a timer, which calls [`EventHandler::on_timer`] once, after `in_ms` milliseconds.
    pub fn start_timer<H: EventHandler>(&self, in_ms: i64) -> Timer {
        // SAFETY: `self.ctx` is live, and the callback uses no data.
        Timer(unsafe { api!(RedisModule_CreateTimer(self.ctx, in_ms, Some(timer_fired::<H>), ptr::null_mut())) })
    }

    /// Stops a timer. Does nothing if the timer has already fired.
    pub fn stop_timer(&self, Timer(id): Timer) {
        // SAFETY: `self.ctx` is live. The server looks timers up by number and ignores unknown ones.
        unsafe { api!(RedisModule_StopTimer(self.ctx, id, ptr::null_mut())) };
    }

    /// Subscribes to all events of the server that the module needs: those of [`EventHandler`], and those after which effects may
    /// have a receiver or the server's configuration has changed.
    ///
    /// One callback handles all of them, because a module can have only one callback per event.
    pub fn subscribe_to_server_events<H: EventHandler>(&self) {
        const EVENTS: [u64; 10] = [
            raw::REDISMODULE_EVENT_FLUSHDB,
            raw::REDISMODULE_EVENT_SWAPDB,
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
            raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
            raw::REDISMODULE_EVENT_CRON_LOOP,
            raw::REDISMODULE_EVENT_CONFIG,
            raw::REDISMODULE_EVENT_FORK_CHILD,
            raw::REDISMODULE_EVENT_PERSISTENCE,
            raw::REDISMODULE_EVENT_LOADING,
            raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        ];
        let subscribe = |id| {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            // SAFETY: `self.ctx` is live. The callback does not use the event's data, whose layout depends on `dataver`.
            let status = unsafe { api!(RedisModule_SubscribeToServerEvent(self.ctx, event, Some(server_event::<H>))) };
            status == raw::REDISMODULE_OK as c_int
        };
        let subscribed = EVENTS.map(subscribe);
        if subscribed == [true; EVENTS.len()] {
            propagation::start(self);
        }
        // Redis before 8.4 refuses this subscription. In Valkey, the number means another event.
        if !Info::is_valkey(self) {
            subscribe(raw::REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION);
        }
    }

    /// Subscribes to [`EventHandler::on_key_event`] for each key that is deleted, renamed, copied, restored, moved or evicted,
    /// that expires, or whose deadline a command sets. This cannot be undone, and makes each such command a little slower.
    pub fn subscribe_to_key_events<H: EventHandler>(&self) {
        let classes = raw::REDISMODULE_NOTIFY_GENERIC | raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED;
        // SAFETY: `self.ctx` is live.
        unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(self.ctx, classes, Some(key_event::<H>))) };
    }
}

/// The callback of timers.
///
/// # Safety
/// Only the server may call it: `ctx` must be live during the call.
unsafe extern "C" fn timer_fired<H: EventHandler>(ctx: Ctx, _: *mut c_void) {
    // SAFETY: the server passes a context that is live during this call.
    let server = unsafe { Server::new(ctx) };
    contain_panic(|| H::on_timer(&server));
}

/// The callback of keyspace events.
///
/// # Safety
/// Only the server may call it: `ctx` must be live and `name` valid during the call.
unsafe extern "C" fn key_event<H: EventHandler>(ctx: Ctx, _: c_int, _: *const c_char, name: ServerString) -> c_int {
    // SAFETY: the server passes a context that is live during this call.
    let server = unsafe { Server::new(ctx) };
    // SAFETY: the server passes the name of the key, which it neither changes nor frees during this call.
    contain_panic(|| H::on_key_event(&server, unsafe { string_bytes(name) }));
    raw::REDISMODULE_OK as c_int
}

/// The callback of the server's events.
///
/// # Safety
/// Only the server may call it: `ctx` must be live during the call.
unsafe extern "C" fn server_event<H: EventHandler>(ctx: Ctx, event: raw::RedisModuleEvent, _: u64, _: *mut c_void) {
    // SAFETY: the server passes a context that is live during this call.
    let server = unsafe { Server::new(ctx) };
    contain_panic(|| match event.id {
        raw::REDISMODULE_EVENT_CRON_LOOP => H::on_cron(&server),
        // `CLUSTER MIGRATION` removes the keys of a slot without key events.
        raw::REDISMODULE_EVENT_FLUSHDB | raw::REDISMODULE_EVENT_SWAPDB | raw::REDISMODULE_EVENT_CLUSTER_SLOT_MIGRATION => {
            H::on_database_event(&server)
        }
        // After an asynchronous load, a replica exchanges all its keys for those of its primary, and fires none of the events above.
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED | raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => {
            propagation::ask_at_next_effect();
            H::on_database_event(&server);
        }
        raw::REDISMODULE_EVENT_CONFIG => {
            propagation::ask_at_next_effect();
            write_refusals::configuration_changed();
        }
        _ => propagation::ask_at_next_effect(),
    });
}
