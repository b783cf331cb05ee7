#!/usr/bin/env bash
# Runs one of benches/ with its arguments: bench.sh NAME [ARGUMENT]...
# Their libraries have other features than the module alone, and cargo would write another module over target/release: what must
# be fast is built in target/bench, and what only talks to a server is built as the tests are.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
name=$1
shift
things=()
[ "$name" != speed ] || things=(redis-benchmark pip)
[ "$name" != instructions ] || things=(valgrind)
need_all "${things[@]}"
build
case $name in
  core | speed | waiters)
    [ -d target/bench ] || say "Building the benchmark; the first time takes about 5 minutes on two cores."
    cargo=(cargo bench --target-dir "$root/target/bench")
    ;;
  *)
    [ -d target/debug ] || say "Building; the first time takes about 2 minutes on two cores."
    cargo=(cargo bench --profile test)
    ;;
esac
"${cargo[@]}" --bench "$name" --no-run

case $name in
  speed)
    while IFS=$'\t' read -r _ program; do set -- "$@" --server "$program"; done < <(scripts/servers.sh redis-8.2.3 valkey-9.1.2)
    ;;
  instructions)
    counted=$root/target/callgrind
    mkdir -p "$counted"
    cat >"$counted/redis-server" <<START
#!/bin/sh
exec valgrind -q --tool=callgrind --callgrind-out-file=callgrind.out.%p '$server' "\$@"
START
    chmod +x "$counted/redis-server"
    server=$counted/redis-server
    ;;
esac
REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server "${cargo[@]}" --quiet --bench "$name" -- "$@"
