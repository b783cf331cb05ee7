//! A row of integers as one reply, instead of a call into the server for each: on Redis 7.0 these are as much work as opening
//! the key.
//!
//! The server copies a reply that it gave to the module (`RedisModule_ReplyWithCallReply`) to the client byte for byte. So a few
//! such replies are kept, one for each length that a row can usually have, and a row is written over the one that is as long.
//! Where that can't be done, a row is replied piece by piece.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::api::server;
use super::Call;

/// The lengths of the rows that are kept: from five integers of a digit each on. Below a hundred bytes a string of every length
/// makes a reply.
const SHORTEST: usize = 24;
const LONGEST: usize = 90;

const ECHO: &CStr = c"ECHO";

/// Replies of the server's, by their length, and the context that they were given in.
static FORMS: [Form; LONGEST - SHORTEST + 1] = [const { Form::new() }; LONGEST - SHORTEST + 1];
static CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// A reply whose bytes are to be written over.
struct Form {
    reply: AtomicPtr<raw::RedisModuleCallReply>,
    /// As long as its place says; null where there is none.
    bytes: AtomicPtr<u8>,
}

impl Form {
    const fn new() -> Self {
        Self { reply: AtomicPtr::new(ptr::null_mut()), bytes: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// Has the server give the replies that are kept.
pub(super) fn start() {
    // SAFETY: the context is no call's, and is freed by `stop`, after all replies that were given in it.
    let ctx = unsafe { server!(RedisModule_GetThreadSafeContext(ptr::null_mut())) };
    CONTEXT.store(ctx, Ordering::Relaxed);
    for (form, len) in FORMS.iter().zip(SHORTEST..) {
        // "$" and two digits before, and a line's end before and after.
        let text = [b'-'; LONGEST];
        let text = &text[..len - 7];
        // SAFETY: `ctx` is live. The reply is the module's own until it is freed, and so are the bytes that it is made of, as many
        // as the server tells. They are on its heap: it calls them constant, but nobody else has them, and nothing but `integers`
        // looks at them again.
        unsafe {
            let reply = server!(RedisModule_Call(ctx, ECHO.as_ptr(), c"b".as_ptr(), text.as_ptr(), text.len()));
            if reply.is_null() {
                return;
            }
            form.reply.store(reply, Ordering::Relaxed);
            let mut told = 0;
            let bytes = server!(RedisModule_CallReplyProto(reply, &mut told)).cast::<u8>();
            if !bytes.is_null() && told == len {
                form.bytes.store(bytes.cast_mut(), Ordering::Relaxed);
            }
        }
    }
}

/// Gives them back.
pub(super) fn stop() {
    for form in &FORMS {
        form.bytes.store(ptr::null_mut(), Ordering::Relaxed);
        let reply = form.reply.swap(ptr::null_mut(), Ordering::Relaxed);
        if !reply.is_null() {
            // SAFETY: it is a reply of `start`'s, is freed once, and the context that it was given in is still there.
            unsafe { server!(RedisModule_FreeCallReply(reply)) };
        }
    }
    let ctx = CONTEXT.swap(ptr::null_mut(), Ordering::Relaxed);
    if !ctx.is_null() {
        // SAFETY: it is the context of `start`, and is freed once.
        unsafe { server!(RedisModule_FreeThreadSafeContext(ctx)) };
    }
}

/// Replies an array of these integers.
pub(super) fn integers(call: &Call<'_>, integers: &[i64; 5]) {
    let mut text = [0; ROOM];
    let start = write(&mut text, integers);
    let text = &text[start..];
    let len = text.len();
    if let Some(form) = len.checked_sub(SHORTEST).and_then(|index| FORMS.get(index)) {
        let bytes = form.bytes.load(Ordering::Relaxed);
        if !bytes.is_null() {
            // SAFETY: as many bytes as `start` was told, which are the module's own: the server has copied what they held before.
            // Only the server's main thread gets here.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr(), bytes, len);
                server!(RedisModule_ReplyWithCallReply(call.ctx, form.reply.load(Ordering::Relaxed)));
            }
            return;
        }
    }
    call.reply_array(integers.len());
    integers.iter().for_each(|&integer| call.reply_integer(integer));
}

/// Five integers of 20 characters each at the most, with what is around them.
const ROOM: usize = 4 + 5 * 23;

/// The array in the server's protocol, at the end of `text`: tells where it starts.
fn write(text: &mut [u8; ROOM], integers: &[i64; 5]) -> usize {
    // From the back, where no number's length need be known.
    let mut at = ROOM;
    for &integer in integers.iter().rev() {
        put(text, &mut at, *b"\r\n");
        let mut rest = integer.unsigned_abs();
        while rest >= 100 {
            put(text, &mut at, PAIRS[(rest % 100) as usize]);
            rest /= 100;
        }
        if rest < 10 {
            put(text, &mut at, [b'0' + rest as u8]);
        } else {
            put(text, &mut at, PAIRS[rest as usize]);
        }
        if integer < 0 {
            put(text, &mut at, *b"-");
        }
        put(text, &mut at, *b":");
    }
    put(text, &mut at, *b"*5\r\n");
    at
}

/// Writes before `at`.
#[inline(always)]
fn put<const N: usize>(text: &mut [u8; ROOM], at: &mut usize, bytes: [u8; N]) {
    *at -= N;
    text[*at..*at + N].copy_from_slice(&bytes);
}

/// The numbers below a hundred, in two digits.
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

    fn written(integers: &[i64; 5]) -> String {
        let mut text = [0; ROOM];
        let start = write(&mut text, integers);
        String::from_utf8(text[start..].to_vec()).expect("text")
    }

    #[test]
    fn the_longest_row_has_room() {
        assert_eq!(written(&[i64::MIN; 5]).len(), ROOM);
        assert_eq!(written(&[0; 5]).len(), SHORTEST);
    }

    proptest! {
        #[test]
        fn a_row_is_an_array_of_integers(
            integers in prop::array::uniform5(prop_oneof![any::<i64>(), -1..1_000_i64, (0_u32..19).prop_map(|n| 10_i64.pow(n) - 1)]),
        ) {
            let lines: Vec<String> = integers.iter().map(|integer| format!(":{integer}\r\n")).collect();
            prop_assert_eq!(written(&integers), format!("*5\r\n{}", lines.concat()));
        }
    }
}
