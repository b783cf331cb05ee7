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
# The features build without each other. Each line builds the crate `redis` again, so two that have nothing in common share one.
for features in "" tokio tower cluster "sentinel tls"; do
  cargo clippy --locked --no-default-features --features "$features" -- -D warnings
done
RUSTDOCFLAGS="-D warnings" cargo doc --locked --all-features --no-deps

# Most tests wait, for a server or for a lease to end: more of them than there are processors run at a time.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
# These tests need only a server of any version. They run with RESP2 and with RESP3, both at the same time.
any=(--test behaviour --test admit --test attack --test cached --test reliability --test wallet)

# Runs the tests with these arguments, and those of `any` beside them with RESP3.
both() {
  local log job third=0 second=0
  log=$(mktemp)
  # It has a process group of its own, so that all of it ends if this script is interrupted. A test that speaks both versions by
  # itself, for more than a minute, runs once.
  set -m
  REDIS_RL_PROTOCOL=resp3 cargo test --locked --all-features "${any[@]}" -- --skip a_default_wait >"$log" 2>&1 &
  job=$!
  set +m
  # shellcheck disable=SC2064 # The values of now.
  trap "kill -- -$job 2>/dev/null; rm -f '$log'" EXIT
  REDIS_RL_PROTOCOL=resp2 cargo test --locked --all-features "$@" || second=$?
  wait "$job" || third=$?
  trap - EXIT
  say "" "The same with RESP3:"
  cat "$log"
  rm -f "$log"
  [ "$second" = 0 ] && [ "$third" = 0 ]
}

cargo test --locked --all-features --no-run
for name in "${names[@]}"; do
  if [ "$name" = installed ]; then
    REDIS_RL_SERVER=$server both
  else
    say "" "Tests on $name:"
    # tls.rs is not among them: some of these servers are built without TLS.
    REDIS_RL_SERVER=$("$root/scripts/servers.sh" "$name" | cut -f 2) both "${any[@]}"
  fi
done
