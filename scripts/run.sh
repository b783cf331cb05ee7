#!/usr/bin/env bash
# Runs a server with the module on PORT, or on the next free port, until Ctrl-C. The server saves no data.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck disable=SC2119 # need_all has optional arguments.
need_all
build

client=$(command -v "${server%-server}-cli" || command -v redis-cli || command -v valkey-cli)
port=${PORT:-6379}
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
[ "$port" = "${PORT:-6379}" ] || say "Another program listens on port ${PORT:-6379}: this server takes $port."
dir=$(mktemp -d)
"$server" --port "$port" --bind 127.0.0.1 --dir "$dir" --save '' --loglevel warning --logfile log --loadmodule "$module" &
pid=$!
trap 'kill $pid 2>/dev/null || true; wait $pid 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 0' INT TERM
until "$client" -p "$port" ping >/dev/null 2>&1; do
  kill -0 $pid 2>/dev/null || { cat "$dir/log" >&2; die "The server did not start."; }
  sleep 0.1
done

at=
[ "$port" = 6379 ] || at=" -p $port"
cat <<TRY

$(version_of "$server") with redis-rl listens on 127.0.0.1:$port.
In another terminal, try:

  $(basename "$client")$at RL.GCRA key 10 60      # ten at once, then one every 6 seconds
  $(basename "$client")$at RL.SLIDE key2 10 60    # never more than 10 in any 60 seconds

The reply: granted, limit, remaining, wait_ms, reset_ms. Ctrl-C stops the server.
TRY
wait $pid
