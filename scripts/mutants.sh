#!/usr/bin/env bash
# Changes the code of the pure core in one small place at a time, and runs its tests: a change that no test notices is a gap in
# the tests, or makes no difference. FILE names the sources, ONLY is a pattern for the changes, and SHARD=0/8 is an eighth of them.
# The changes that no test noticed are in target/mutants/mutants.out/missed.txt.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need compiler libclang
if ! cargo mutants --version >/dev/null 2>&1; then
  say "Building cargo-mutants (a few minutes)"
  cargo install --quiet --locked cargo-mutants
fi
# cargo-mutants changes a copy of the sources. All its builds share a folder, so libraries are compiled once.
export CARGO_TARGET_DIR=$root/target/mutants/build
# Fewer random cases than in `make test`, and no search for the simplest case that fails.
export PROPTEST_CASES=${PROPTEST_CASES:-1000} PROPTEST_MAX_SHRINK_ITERS=0
mkdir -p target/mutants
options=(--output target/mutants --timeout 300)
read -ra files <<<"${FILE:-src/limiter/** src/queue/**}"
for file in "${files[@]}"; do options+=(--file "$file"); done
[ -z "${ONLY:-}" ] || options+=(--re "$ONLY")
[ -z "${SHARD:-}" ] || options+=(--shard "$SHARD")
# The slowest test notices nothing that the others do not.
cargo mutants "${options[@]}" -- --lib --test core -- --skip polled_for_a_year
