#!/bin/sh
# Runs a server until it ends, or until standard input ends or has a line. The program that starts this script holds the other end of
# that pipe, so the server ends with the program, also after kill -9. Then the server's folder is removed.
# Usage: sh watch.sh DATA PORT SERVER [ARGUMENT]...   DATA is the folder for the server's data, or empty: then they are removed, too.
# PORT is `any` for a free one, and 0 for a socket alone. Prints `ready PORT FOLDER`; after the end, what the server said last.
exec 3<&0 2>&1
# Only the pipe ends this script: not a terminal, not a service manager, and not the loss of its reader.
trap '' HUP INT PIPE TERM
umask 077
data=$1 port=$2
shift 2
command -v "$1" >/dev/null || { echo "There is no program $1."; exit; }
base=${TMPDIR:-/tmp}
# The path of a socket has at most 107 bytes.
[ ${#base} -le 80 ] || base=/tmp
dir=$(mktemp -d "$base/redis-rl.XXXXXX") || exit
trap 'rm -rf "$dir"' EXIT
[ -z "$data" ] || mkdir -p -- "$data" || exit
# A server does not notice at its start that it can't write, so a file is written as a trial.
for at in "$dir" "${data:-$dir}"; do
  file=$(mktemp "$at/redis-rl-trial.XXXXXX") || exit
  env printf '%s\n' "Can a file be written here?" >"$file" || { rm -f "$file"; echo "Nothing can be written in $at."; exit; }
  rm -f "$file"
done

tries=0 ready=
while [ -z "$ready" ] && [ $tries -lt 20 ]; do
  tries=$((tries + 1)) at=$port
  # Below the ports that the system gives to connections.
  [ "$port" != any ] || at=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))
  : >"$dir/log"
  "$@" --port "$at" --bind 127.0.0.1 --dir "${data:-$dir}" --unixsocket "$dir/socket" --unixsocketperm 700 --logfile '' \
    --loglevel notice </dev/null 3<&- >>"$dir/log" 2>&1 &
  server=$!
  {
    read -r _ <&3
    # With a folder of its own it saves the data. After 10 seconds without success, it ends all the same.
    [ -z "$data" ] || kill "$server"
    tenths=0
    while [ -n "$data" ] && kill -0 "$server" && [ $tenths -lt 100 ]; do sleep 0.1; tenths=$((tenths + 1)); done
    kill -9 "$server"
  } >/dev/null 2>&1 &
  reader=$!
  while [ -z "$ready" ] && kill -0 "$server" 2>/dev/null; do
    if grep -q 'eady to accept connections' "$dir/log"; then ready=yes; echo "ready $at $dir"; else sleep 0.02; fi
  done
  wait "$server" 2>/dev/null
  { kill -9 "$reader" && wait "$reader"; } >/dev/null 2>&1
  grep -q 'Address already in use' "$dir/log" || { tail -n 8 "$dir/log"; exit; }
  [ "$port" = any ] || break
done
echo "Port $at is in use: another program listens on it."
