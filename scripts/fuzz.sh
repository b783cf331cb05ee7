#!/usr/bin/env bash
# Fuzzes the pure parts: the grammar, records and ledgers, sequences of calls and histories with ids compared with exact models,
# and the queues. First replays all kept inputs, then looks for new ones for SECONDS_EACH seconds for each target.
#
# The kept inputs are those of the archive fuzz/corpus.tar.gz: in its folder `regressions` those that once failed. To keep more, unpack
# it in an empty folder, add the files, and pack it again:
# tar --sort=name --mtime=@0 --owner=0 --group=0 -cf - corpus regressions | gzip -9n
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need c++
targets=(grammar record ledger calls histories queue)
seconds=${SECONDS_EACH:-600}
fuzzed=$root/target/fuzz
if ! cargo fuzz --version >/dev/null 2>&1; then
  say "Building cargo-fuzz (about a minute)"
  cargo install --quiet --debug --locked cargo-fuzz
fi
say "Fuzzing ${#targets[@]} targets for $seconds seconds each"
# The pure parts are safe Rust. Without a sanitizer, fuzzing is several times as fast, and works with any compiler.
cargo fuzz build --sanitizer none --target-dir "$fuzzed"

kept=$fuzzed/kept
rm -rf "$kept"
mkdir -p "$kept"
tar -xzf fuzz/corpus.tar.gz -C "$kept"

# libFuzzer measures the time of an input by the wall clock, and a virtual machine can stand still for half a minute. So an input may
# take long once. If it took ten seconds, libFuzzer keeps it as a "slow unit", and look() repeats it with a limit of ten seconds.
timeout=-timeout=120
fuzz() {
  log=$fuzzed/$1.log
  cargo fuzz run --sanitizer none --target-dir "$fuzzed" "$@" >"$log" 2>&1 || { grep -v '^#' "$log" | tail -n 60; exit 1; }
}

for target in "${targets[@]}"; do
  mkdir -p "$fuzzed/corpus/$target" "$kept/regressions/$target"
  mapfile -d '' -t inputs < <(find "$kept/corpus/$target" "$kept/regressions/$target" -type f -print0)
  fuzz "$target" "${inputs[@]}" -- -runs=0 "$timeout"
  say "$target: $(grep -c '^Executed' "$fuzzed/$target.log") kept inputs pass"
done
# look TARGET: looks for new inputs.
look() {
  local dictionary=()
  [ ! -f "fuzz/$1.dict" ] || dictionary=("-dict=fuzz/$1.dict")
  # New inputs go into the first folder, which is not part of the repository.
  fuzz "$1" "$fuzzed/corpus/$1" "$kept/corpus/$1" "$kept/regressions/$1" -- \
    -max_total_time="$seconds" -max_len=1024 "$timeout" "${dictionary[@]}"
  say "$1: $(grep DONE "$fuzzed/$1.log")"
  local slow
  for slow in fuzz/artifacts/"$1"/slow-unit-*; do
    [ ! -e "$slow" ] || fuzz "$1" "$slow" -- -runs=0 -timeout=10
  done
}

# A target uses one processor, so as many run at a time as there are. Each has a process group of its own, which ends with this
# script.
set -m
end_all() {
  local job
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done
}
trap end_all EXIT
trap 'exit 130' INT TERM HUP
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n
    running=$((running - 1))
  fi
  look "$target" &
  running=$((running + 1))
done
for ((; running > 0; running--)); do wait -n; done
