//! Sends five integers with one call of the module API instead of six: on Redis 7.0 these six cost as much as opening the key.
//!
//! `RedisModule_ReplyWithCallReply` copies to the client, byte for byte, a reply that the module got from `RedisModule_Call`.
//! [`start`] collects such replies as templates, one for each length that an array of five integers usually has.
//! [`integers`] overwrites the bytes of the template with the right length and sends it. Without a template of that length it
//! sends the integers one by one.
//!
//! This relies on internals that the module API does not promise: the bytes of a call reply are in memory that only the reply refers
//! to, and the server neither keeps a parsed copy of them nor checks them when it sends the reply.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::server::{api, raw, Call, MainThread, Server};

/// The lengths that have a template. The shortest is that of five integers of one digit. Up to the longest, the header of a
/// bulk string has a length of two digits, so that there is a bulk string of each length.
const SHORTEST: usize = 24;
const LONGEST: usize = 90;

/// The command whose replies become the templates.
const ECHO: &CStr = c"ECHO";

/// The templates, by length from [`SHORTEST`] on.
static TEMPLATES: [ReplyTemplate; LONGEST - SHORTEST + 1] = [const { ReplyTemplate::new() }; LONGEST - SHORTEST + 1];

/// The context that the templates belong to.
static CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// The integers that were sent last by a template, and that template: its bytes are still right if the same integers follow, as in a
/// flood of denials.
static SENT: MainThread<([i64; 5], *mut raw::RedisModuleCallReply)> = MainThread::new(([0; 5], ptr::null_mut()));

/// A call reply whose bytes are overwritten for each use.
struct ReplyTemplate {
    reply: AtomicPtr<raw::RedisModuleCallReply>,
    /// The bytes of `reply`, whose number follows from the index in [`TEMPLATES`]; null if there is no template.
    bytes: AtomicPtr<u8>,
}

impl ReplyTemplate {
    const fn new() -> Self {
        Self { reply: AtomicPtr::new(ptr::null_mut()), bytes: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// Collects the templates, on servers where the shortcut is safe.
pub(in crate::server) fn start() {
    if !super::are_in_use() {
        return;
    }
    // SAFETY: a context that belongs to no client; `stop` frees it, after the replies that belong to it.
    let ctx = unsafe { api!(RedisModule_GetThreadSafeContext(ptr::null_mut())) };
    CONTEXT.store(ctx, Ordering::Relaxed);
    for (template, len) in TEMPLATES.iter().zip(SHORTEST..) {
        // The protocol adds "$", two digits and a line end before the text, and a line end after it.
        let text = [b'-'; LONGEST];
        let text = &text[..len - 7];
        // SAFETY: `ctx` is live, and the format takes the bytes and their length, which follow it. The reply is valid until
        // `stop` frees it, and so are its bytes.
        unsafe {
            let reply = api!(RedisModule_Call(ctx, ECHO.as_ptr(), c"b".as_ptr(), text.as_ptr(), text.len()));
            if reply.is_null() {
                return;
            }
            template.reply.store(reply, Ordering::Relaxed);
            let mut actual_len = 0;
            let bytes = api!(RedisModule_CallReplyProto(reply, &mut actual_len)).cast::<u8>();
            if !bytes.is_null() && actual_len == len {
                template.bytes.store(bytes.cast_mut(), Ordering::Relaxed);
            }
        }
    }
}

/// Frees the templates.
pub(in crate::server) fn stop(server: &Server<'_>) {
    SENT.with(server, |(_, reply)| *reply = ptr::null_mut());
    for template in &TEMPLATES {
        template.bytes.store(ptr::null_mut(), Ordering::Relaxed);
        let reply = template.reply.swap(ptr::null_mut(), Ordering::Relaxed);
        if !reply.is_null() {
            // SAFETY: `start` got the reply from the server, the swap above ensures that it is freed once, and its context is
            // freed only below.
            unsafe { api!(RedisModule_FreeCallReply(reply)) };
        }
    }
    let ctx = CONTEXT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !ctx.is_null() {
        // SAFETY: `start` made the context, the swap above ensures that it is freed once, and no reply belongs to it any more.
        unsafe { api!(RedisModule_FreeThreadSafeContext(ctx)) };
    }
}

/// Replies with an array of these integers.
pub(in crate::server) fn integers(call: &Call<'_>, integers: &[i64; 5]) {
    let same = SENT.with(call, |(sent, reply)| (sent == integers).then_some(*reply)).flatten();
    if let Some(reply) = same.filter(|reply| !reply.is_null()) {
        // SAFETY: `start` got the reply from the server, and `stop` forgets it here before it frees it. See `send`.
        unsafe { api!(RedisModule_ReplyWithCallReply(call.ctx, reply)) };
        return;
    }
    let mut buffer = [0; MAX_LEN];
    let room = &mut buffer[..];
    let start = encode(room, integers).len();
    match send(call, &buffer[start..]) {
        Some(reply) => {
            SENT.with(call, |sent| *sent = (*integers, reply));
        }
        None => {
            call.reply_array(integers.len());
            integers.iter().for_each(|&integer| call.reply_integer(integer));
        }
    }
}

/// Replies with an array of these two integers and of an array of `len` arrays of five integers, the first of which is `first`.
/// [`integers`] must then send the others.
pub(in crate::server) fn rows(call: &Call<'_>, head: [i64; 2], len: usize, first: Option<[i64; 5]>) {
    let mut buffer = [0; 2 * MAX_LEN];
    let mut room = &mut buffer[..];
    if let Some(first) = &first {
        room = encode(room, first);
    }
    room = encode_integer(room, b'*', len as i64);
    room = head.iter().rev().fold(room, |room, &integer| encode_integer(room, b':', integer));
    let start = prepend(room, *b"*3\r\n").len();
    // The bytes of a template may be those that `SENT` stands for.
    SENT.with(call, |(_, reply)| *reply = ptr::null_mut());
    if send(call, &buffer[start..]).is_none() {
        call.reply_array(head.len() + 1);
        head.iter().for_each(|&integer| call.reply_integer(integer));
        call.reply_array(len);
        first.iter().for_each(|first| integers(call, first));
    }
}

/// Sends a part of a reply by the template of its length, and returns that. `None` if there is no such template.
#[inline(always)]
fn send(call: &Call<'_>, text: &[u8]) -> Option<*mut raw::RedisModuleCallReply> {
    let len = text.len();
    let template = TEMPLATES.get(len.checked_sub(SHORTEST)?)?;
    let bytes = template.bytes.load(Ordering::Relaxed);
    if bytes.is_null() {
        return None;
    }
    let reply = template.reply.load(Ordering::Relaxed);
    // SAFETY: `start` checked that the template has `len` bytes. They are on the server's heap and nothing else refers to them: the
    // server copies them to the client before the second call returns. Only the server's main thread executes commands, so no other
    // thread writes here.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), bytes, len);
        api!(RedisModule_ReplyWithCallReply(call.ctx, reply));
    }
    Some(reply)
}

/// The most bytes that an array of five integers can need: five integers of 20 characters, each between `:` and a line end, after
/// `*5` and a line end.
const MAX_LEN: usize = 4 + 5 * 23;

/// Encodes an array of five integers in the server's protocol at the end of `room`. Returns what is left of the room.
#[inline(always)]
fn encode<'r>(room: &'r mut [u8], integers: &[i64; 5]) -> &'r mut [u8] {
    // Backwards, so that no length has to be computed in advance.
    let room = integers.iter().rev().fold(room, |room, &integer| encode_integer(room, b':', integer));
    prepend(room, *b"*5\r\n")
}

/// Encodes a line with an integer, after the character that says what it is, at the end of `room`. Returns what is left of the room.
#[inline(always)]
fn encode_integer(mut room: &mut [u8], what: u8, integer: i64) -> &mut [u8] {
    let mut rest = integer.unsigned_abs();
    if (0..10).contains(&integer) {
        // Most integers have one digit: they are zero or one.
        return prepend(room, [what, b'0' + rest as u8, b'\r', b'\n']);
    }
    room = prepend(room, *b"\r\n");
    while rest >= 100 {
        room = prepend(room, PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    room = if rest < 10 { prepend(room, [b'0' + rest as u8]) } else { prepend(room, PAIRS[rest as usize]) };
    if integer < 0 {
        prepend(room, [what, b'-'])
    } else {
        prepend(room, [what])
    }
}

/// Writes `bytes` at the end of `room`. Returns what is left of the room. The bytes must fit.
#[inline(always)]
fn prepend<const N: usize>(room: &mut [u8], bytes: [u8; N]) -> &mut [u8] {
    let Some((room, end)) = room.split_last_chunk_mut() else { return &mut [] };
    *end = bytes;
    room
}

/// The numbers below 100, with two digits each.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(integers: &[i64; 5]) -> String {
        let mut buffer = [0; MAX_LEN];
        let start = encode(&mut buffer, integers).len();
        String::from_utf8(buffer[start..].to_vec()).expect("text")
    }

    #[test]
    fn the_buffer_holds_the_longest_array() {
        assert_eq!(encoded(&[i64::MIN; 5]).len(), MAX_LEN);
        assert_eq!(encoded(&[0; 5]).len(), SHORTEST);
    }

    proptest! {
        #[test]
        fn integers_are_encoded_as_an_array(
            integers in prop::array::uniform5(prop_oneof![any::<i64>(), -1..1_000_i64, (0_u32..19).prop_map(|n| 10_i64.pow(n) - 1)]),
        ) {
            let lines: Vec<String> = integers.iter().map(|integer| format!(":{integer}\r\n")).collect();
            prop_assert_eq!(encoded(&integers), format!("*5\r\n{}", lines.concat()));
        }
    }
}
