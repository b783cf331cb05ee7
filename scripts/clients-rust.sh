#!/usr/bin/env bash
# Tests the Rust client package, clients/rust: format, lints, documentation, and the tests on servers that it starts. With BENCH=1
# it also measures how many decisions a second a wallet makes.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck disable=SC2119 # need_all has optional arguments.
need_all
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

cd clients/rust
export CARGO_TARGET_DIR=$root/target/clients/rust
cargo fmt --check
cargo clippy --locked --all-features --all-targets -- -D warnings
# Each feature builds alone, and so does the crate without any.
cargo clippy --locked --no-default-features -- -D warnings
for feature in tokio cluster sentinel tower; do
  cargo clippy --locked --no-default-features --features "$feature" -- -D warnings
done
RUSTDOCFLAGS="-D warnings" cargo doc --locked --all-features --no-deps
cargo test --locked --all-features
if [ -n "${BENCH:-}" ]; then cargo bench --locked --all-features; fi
