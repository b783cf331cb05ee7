#!/usr/bin/env bash
# Tests the Rust client package, clients/rust, and the programs of examples/rust: format, lints, documentation, and the tests on
# servers that it starts. SERVERS names the servers of the tests, as for `make matrix`, such as SERVERS="installed valkey-9.1.2"; the
# default is the installed one.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed}"
need_all openssl
build
export REDIS_RL_MODULE=$module

cd clients/rust
export CARGO_TARGET_DIR=$root/target/clients/rust
cargo fmt --check
cargo clippy --locked --all-features --all-targets -- -D warnings
# The features build without each other.
for features in "" tower zone tls; do
  cargo clippy --locked --no-default-features --features "$features" -- -D warnings
done
RUSTDOCFLAGS="-D warnings" cargo doc --locked --all-features --no-deps

# Most tests wait, for a server or for a lease to end: more of them than there are processors run at a time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
# These tests need only a server of any version.
any=(--test behaviour --test admit --test attack --test named --test outage --test reliability --test topology --test waits --test wallet)

cargo test --locked --all-features --no-run
for name in "${names[@]}"; do
  if [ "$name" = installed ]; then
    REDIS_RL_SERVER=$server cargo test --locked --all-features
  else
    say "" "Tests on $name:"
    # tls.rs is not among them: some of these servers are built without TLS.
    REDIS_RL_SERVER=$("$root/scripts/servers.sh" "$name" | cut -f 2) cargo test --locked --all-features "${any[@]}"
  fi
done
