//! What can be the key of a call.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

/// The key of a call: text, bytes or an integer. It must not be empty.
pub trait Key {
    /// The bytes of the key. An integer is written with decimal digits.
    fn bytes(&self) -> Cow<'_, [u8]>;
}

impl<const N: usize> Key for [u8; N] {
    fn bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

macro_rules! key {
    (inside $($holder:ty),*) => {$(
        impl<K: Key + ?Sized> Key for $holder {
            fn bytes(&self) -> Cow<'_, [u8]> {
                (**self).bytes()
            }
        }
    )*};
    (bytes $($bytes:ty),*) => {$(
        impl Key for $bytes {
            fn bytes(&self) -> Cow<'_, [u8]> {
                Cow::Borrowed(self.as_ref())
            }
        }
    )*};
    (integers $($integer:ty),*) => {$(
        impl Key for $integer {
            fn bytes(&self) -> Cow<'_, [u8]> {
                Cow::Owned(self.to_string().into_bytes())
            }
        }
    )*};
}

key!(inside & K, Box<K>, Arc<K>);
key!(bytes[u8], str, String, Vec<u8>);
key!(integers u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

/// The key of a client that has no name: `address:` and the address. Of an IPv6 address it is the network, its first 64 bits,
/// because a client commonly has all addresses of one network. An IPv4 address that is written as IPv6 is an IPv4 address.
pub fn address_key(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("address:{address}"),
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            format!("address:{}/64", std::net::Ipv6Addr::from(network))
        }
    }
}
