#!/usr/bin/env bash
# Runs a command TIMES times in a row beside one busy loop for each processor, and stops at the first failure. Tests that judge
# by the clock of the client instead of the server fail here.
#
#   TIMES=5 scripts/busy.sh make test
set -euo pipefail

times=${TIMES:-5}
loops=()
# The loops end with this script, in whichever way it ends.
trap '[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
parent=$$
for ((loop = 0; loop < $(nproc); loop++)); do
  # It looks now and then whether the script is still there: one that is killed runs no trap.
  (
    trap - EXIT INT TERM HUP
    while [ -d "/proc/$parent" ] || kill -0 "$parent" 2>/dev/null; do
      for ((spin = 0; spin < 200000; spin++)); do :; done
    done
  ) &
  loops+=($!)
done

for ((run = 1; run <= times; run++)); do
  start=$SECONDS
  echo "Run $run of $times beside ${#loops[@]} busy loops; load average $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime)"
  if ! "$@"; then
    echo "Run $run of $times failed after $((SECONDS - start)) s; load average $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime)" >&2
    exit 1
  fi
  echo "Run $run of $times passed in $((SECONDS - start)) s; load average $(cut -d' ' -f1-3 /proc/loadavg 2>/dev/null || uptime)"
done
