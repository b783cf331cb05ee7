#!/usr/bin/env bash
# Tests `make run` the way a person uses it: starts it, runs each line that it suggests in a shell, and stops it with Ctrl-C.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
log=$(mktemp)
# With job control, the job is a process group of its own, to which the script can send SIGINT.
set -m
make run </dev/null >"$log" 2>&1 &
job=$!
trap 'kill -KILL -- -$job 2>/dev/null || true; cat "$log"; rm -f "$log"' EXIT
until grep -q 'Ctrl-C stops the server' "$log"; do
  kill -0 $job 2>/dev/null || die "make run ended by itself."
  sleep 0.2
done

mapfile -t lines < <(grep -E '^ +(redis|valkey)-cli ' "$log")
[ ${#lines[@]} -ge 2 ] || die "make run suggests no lines to paste."
for line in "${lines[@]}"; do
  reply=$(bash -c "$line" | xargs)
  [[ $reply =~ ^1\ 10\ 9\ [0-9]+\ [0-9]+$ ]] || die "This line answers '$reply':$line"
done
# The same call as the first line, on another key, with the port given explicitly.
port=$(sed -nE 's/.*listens on 127\.0\.0\.1:([0-9]+)\..*/\1/p' "$log")
client=$(awk '{ print $1 }' <<<"${lines[0]}")
reply=$("$client" -p "$port" RL.GCRA another 10 60 | xargs)
[ "$reply" = "1 10 9 0 6000" ] || die "RL.GCRA answers '$reply'."

kill -INT -- -$job
{ wait $job || true; } 2>/dev/null
! "$client" -p "$port" ping >/dev/null 2>&1 || die "The server still runs after Ctrl-C."
say "make run: the lines that it suggests work when pasted, RL.GCRA answers $reply, and Ctrl-C stops the server."
