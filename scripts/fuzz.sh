#!/usr/bin/env bash
# Fuzzes the pure parts (the grammar, records, sequences of calls against the exact model, and the queues) for SECONDS_EACH
# seconds each, after all inputs that are kept.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need c++
targets=(grammar record calls queue)
seconds=${SECONDS_EACH:-600}
fuzzed=$root/target/fuzz
if ! cargo fuzz --version >/dev/null 2>&1; then
  say "Building cargo-fuzz (about a minute)"
  cargo install --quiet --debug --locked cargo-fuzz
fi
say "Fuzzing ${#targets[@]} targets for $seconds seconds each"
# All of it is safe Rust: without a sanitizer it is several times as fast, and any compiler will do.
cargo fuzz build --sanitizer none --target-dir "$fuzzed"

fuzz() {
  log=$fuzzed/$1.log
  cargo fuzz run --sanitizer none --target-dir "$fuzzed" "$@" >"$log" 2>&1 || { grep -v '^#' "$log" | tail -n 60; exit 1; }
}

for target in "${targets[@]}"; do
  mkdir -p "$fuzzed/corpus/$target" "fuzz/regressions/$target"
  mapfile -d '' -t kept < <(find "fuzz/corpus/$target" "fuzz/regressions/$target" -type f ! -name '.*' -print0)
  fuzz "$target" "${kept[@]}" -- -runs=0 -timeout=10
  say "$target: $(grep -c '^Executed' "$fuzzed/$target.log") kept inputs pass"
done
for target in "${targets[@]}"; do
  dictionary=()
  [ ! -f "fuzz/$target.dict" ] || dictionary=("-dict=fuzz/$target.dict")
  # What is found goes into the first folder, which is no part of the repository.
  fuzz "$target" "$fuzzed/corpus/$target" "fuzz/corpus/$target" "fuzz/regressions/$target" -- \
    -max_total_time="$seconds" -max_len=1024 -timeout=10 "${dictionary[@]}"
  say "$target: $(grep DONE "$fuzzed/$target.log")"
done
