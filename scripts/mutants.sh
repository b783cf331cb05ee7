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
# No search for the simplest case that fails.
export PROPTEST_MAX_SHRINK_ITERS=0
# Each change builds the tests of the core alone. --lib and --test after a `--` would say what to run, but all other tests would be
# built as well. The time limit of the tests is a multiple of what they take without a change.
options=(--output target/mutants --minimum-test-timeout 60 --cargo-arg=--lib --cargo-arg=--test=core)
read -ra files <<<"${FILE:-src/limiter/** src/queue/**}"
for file in "${files[@]}"; do options+=(--file "$file"); done
all=$(cargo mutants --list "${options[@]}")
chosen=$(cargo mutants --list "${options[@]}" ${SHARD:+--shard "$SHARD"} | grep -E -e "${ONLY:-.}") || die "No change matches."
# --iterate makes each change that is not in these lists. Options such as --re would not do: with them, cargo-mutants still makes each
# change that leaves out a field of a struct.
out=target/mutants/mutants.out
rm -rf "$out"
mkdir -p "$out"
grep -vxFf <(echo "$chosen") <<<"$all" >"$out/previously_caught.txt" || :

# mutate CASES SKIPPED: runs the tests, except those whose names contain a word of SKIPPED, on each change that is to be made and that
# no test has noticed yet. The slowest test, polled_for_a_year, notices nothing that the others do not.
mutate() {
  local skipped=() word
  for word in polled_for_a_year $2; do skipped+=(--skip "$word"); done
  PROPTEST_CASES=$1 cargo mutants --iterate "${options[@]}" -- -- "${skipped[@]}" && return
  # 2: a change was missed; 3: tests ran into the time limit.
  case $? in 2 | 3) ;; *) die "cargo-mutants failed." ;; esac
}
# Few random cases, and no test that takes a second, notice most changes. Only the others have to pass all tests.
mutate 60 "one_id_more lines:: a_million_a_second the_core_decides slide_grants_nearly the_rule_equals leases_equal two_policies_in_turn
  a_shared_log_holds nobody_chose callers_in_turn_write changed_at_any_byte colliding_ids"
# A change with which the tests never end is noticed, too.
cat "$out/timeout.txt" >>"$out/caught.txt"
[ ! -s "$out/missed.txt" ] || mutate "${PROPTEST_CASES:-1000}" ""
if [ -s "$out/missed.txt" ]; then die "Changes that no test noticed: $out/missed.txt"; fi
