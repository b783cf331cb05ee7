//! Random numbers of the operating system.

/// A random number, which no client can predict; 0 if the system has none.
pub fn random_seed() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer has the length that is passed. If the call fails, the buffer stays as it is.
    unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
    u64::from_le_bytes(bytes)
}
