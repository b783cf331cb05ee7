#!/usr/bin/env bash
# Runs a command TIMES times in a row while a busy loop runs for each processor, and stops at the first failure. A test that
# measures time by the clock of the client instead of the server fails here.
#
#   TIMES=5 scripts/busy.sh make test
set -euo pipefail

times=${TIMES:-5}
loops=()
# Ends the loops when this script ends, also by a signal.
trap '[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM HUP
parent=$$
for ((loop = 0; loop < $(nproc); loop++)); do
  # Each loop checks now and then that the script still runs, because a script that is killed runs no trap.
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
