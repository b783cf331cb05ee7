#!/usr/bin/env bash
# Tests the client package for Node.js in clients/node on real servers: Node.js 18.20 or newer. SERVERS names the servers, as for
# `make matrix`: names of the table in scripts/servers.sh, or `installed`, which is the default.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed}"
need_all node npm openssl
servers=$(named_servers "${names[@]}" | cut -f 2)
build
node_packages clients/node
cd clients/node

# The tests mostly wait, so more files run at the same time than there are cores: each has servers of its own. The longest come first.
files=(waits failures pause package topology outage behaviour wallet admission store frameworks values)
[ ${#files[@]} = "$(find test -name '*.test.mjs' | wc -l)" ] || die "scripts/clients-node.sh does not name each file of tests."
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export REDIS_RL_MODULE=$module REDIS_RL_SERVER logs

# Runs a file of tests, and prints its output if it fails.
# shellcheck disable=SC2016 # The inner bash expands these.
one='timeout --foreground 900 node --test "test/$1.test.mjs" >"$logs/$1" 2>&1 || { cat "$logs/$1"; exit 1; }
  printf "%s: %s passed in %.0f s\n" "$1" $(sed -nE "s/^# pass //p" "$logs/$1") $(sed -nE "s/^# duration_ms ([0-9]+).*/\1e-3/p" "$logs/$1")'
while IFS= read -r -u 3 REDIS_RL_SERVER; do
  say "The Node.js client package on $(version_of "$REDIS_RL_SERVER"), Node.js $(node --version)"
  printf '%s\n' "${files[@]}" | xargs -P 4 -I '{}' bash -c "$one" - '{}' || die "The tests of the Node.js client package failed."
done 3<<<"$servers"
