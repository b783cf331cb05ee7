#!/usr/bin/env bash
# Builds the module and a tool of tools/, and runs the tool: tool.sh NAME [ARGUMENT]...
# The argument `--base COMMIT` becomes the module of that commit.
# The name `differential` compares the build of that commit with the one at hand, on SERVER.
# The name `core` runs the benchmark of benches/ instead, and `lines` a simulation of calls that wait in the lines of several keys;
# these need no server. STEPS is how many steps the simulation makes, SEED the seed of the first world. A finding names its seed.
# The name `histories` breaks clusters under load for HOURS, from SEED on, and explains each reply.
# The name `named` runs a test: it makes CALLS random calls by SEED, both by RL.USE and by the command that states the rule.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
name=$1
shift
things=()
# The tools whose own speed matters have a profile of their own. The others are built as the tests are, whose libraries they share.
profile="test"
case $name in
  lines)
    need_rust
    need compiler libclang
    LINES_STEPS=$STEPS LINES_SEED=$SEED exec cargo test --quiet --test core -- --nocapture lines::no_call
    ;;
  bench)
    things=(redis-benchmark pip) profile=tools
    [ "${1:-}" = scale ] || things+=(node npm)
    ;;
  waiters | differential) profile=tools ;;
  instructions) things=(valgrind) ;;
esac
need_all "${things[@]}"
if [ "$name" = core ]; then
  # A benchmark is compiled with the features that the tests' libraries need, and the module with it. In a folder of its own, that
  # module does not replace the one in target/release.
  [ -d target/bench ] || say "Building the benchmark; the first time takes about 3 minutes on two cores."
  exec cargo bench --target-dir "$root/target/bench" --bench core -- "$@"
fi
build
if [ "$name" = named ]; then
  export NAMED_CALLS=$CALLS NAMED_SEED=$SEED REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server
  exec cargo test --quiet --test server -- --nocapture named::a_policy_key_says_what
fi
if [ "$name" = histories ]; then
  export HISTORIES_HOURS=$HOURS HISTORIES_SEED=$SEED REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server
  # A short run shares the libraries of the tests. A longer one checks three times as fast without their assertions.
  [[ $HOURS =~ ^0(\.0.*)?$ ]] || profile=tools
  exec cargo test --quiet --profile "$profile" --test histories
fi
if [ "${1:-}" = --base ]; then
  build_base "${2:-}"
  set -- --base "$base_module" "${@:3}"
fi
programs=target/$profile
[ $profile = tools ] || programs=target/debug
[ -d "$programs" ] || say "Building the tool; the first time takes about 2 minutes on two cores."
cargo build --quiet --profile $profile --package redis-rl-tools --bin "$name"

case $name in
  bench)
    others=(redis-8.2.3 valkey-9.1.2)
    [ "$1" = benchmarks ] || others=(redis-8.2.3 redis-8.6.2 valkey-9.1.2)
    while IFS=$'\t' read -r _ program; do set -- "$@" --server "$program"; done < <(scripts/servers.sh "${others[@]}")
    ;;
  differential) set -- "$@" --new "$module" --server "$server" ;;
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
REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server exec "$programs/$name" "$@"
