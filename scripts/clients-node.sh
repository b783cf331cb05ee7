#!/usr/bin/env bash
# Tests the client package for Node.js in clients/node on real servers: with the Node.js of Debian 12 and with the newest, or with those
# that NODES names, versions such as 22.21.0, which npm installs, or `installed`. SERVERS names the servers, as for `make matrix`: names
# of the table in scripts/servers.sh, or `installed`, which is the default. The first version runs on all servers, the others on one.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed}"
read -r -a versions <<<"${NODES:-18.20.4 26.10.0}"
need_all node npm openssl
servers=$(named_servers "${names[@]}" | cut -f 2)
build
node_packages clients/node

# Sets `node` to Node.js of this version.
find_node() {
  local folder=$root/target/clients/nodes/$1 platform
  node=$(type -P node)
  [ "$1" != installed ] || return 0
  platform=linux-$([ "$machine" = x86_64 ] && echo x64 || echo arm64)
  node=$folder/node_modules/node-$platform/bin/node
  [ -x "$node" ] ||
    npm install --prefix "$folder" --no-save --no-audit --no-fund --loglevel=error "node-$platform@$1"
}
for version in "${versions[@]}"; do find_node "$version"; done
cd clients/node

# The tests mostly wait, so more files run at the same time than there are cores: each has servers of its own. The longest come first.
files=(waits failures pause package topology outage behaviour wallet named admission store frameworks values)
[ ${#files[@]} = "$(find test -name '*.test.mjs' | wc -l)" ] || die "scripts/clients-node.sh does not name each file of tests."
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export REDIS_RL_MODULE=$module REDIS_RL_SERVER logs node

# Runs a file of tests, and prints its output if it fails.
# shellcheck disable=SC2016 # The inner bash expands these.
one='timeout --foreground 900 "$node" --test --test-reporter=tap "test/$1.test.mjs" >"$logs/$1" 2>&1 || { cat "$logs/$1"; exit 1; }
  printf "%s: %s passed in %.0f s\n" "$1" $(sed -nE "s/^# pass //p" "$logs/$1") $(sed -nE "s/^# duration_ms ([0-9]+).*/\1e-3/p" "$logs/$1")'
for version in "${versions[@]}"; do
  find_node "$version"
  while IFS= read -r -u 3 REDIS_RL_SERVER; do
    say "The Node.js client package on $(version_of "$REDIS_RL_SERVER"), Node.js $("$node" --version)"
    printf '%s\n' "${files[@]}" | PATH=$(dirname "$node"):$PATH xargs -P 4 -I '{}' bash -c "$one" - '{}' ||
      die "The tests of the Node.js client package failed."
  done 3<<<"$servers"
  servers=$(head -n 1 <<<"$servers")
done
