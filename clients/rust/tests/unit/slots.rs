//! Slots of keys in a cluster.

#[test]
fn slots_are_those_of_the_specification() {
    assert_eq!(super::slot(b"123456789"), 0x31c3);
    assert_eq!(super::slot(b"{user1000}.following"), super::slot(b"user1000"));
    assert_eq!(super::slot(b"foo{}{bar}"), super::slot(b"foo{}{bar}"));
    assert_ne!(super::slot(b"foo{}{bar}"), super::slot(b"bar"));
    assert_eq!(super::slot(b"foo{{bar}}zap"), super::slot(b"{bar"));
}
