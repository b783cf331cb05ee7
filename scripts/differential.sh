#!/usr/bin/env bash
# Compares the behaviour of two builds of the module: the one at hand, and the one of an older commit.
# Usage: differential.sh BASE [ARGUMENT]... where BASE is a commit, and the arguments are those of tools/src/bin/differential.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
base=$1
shift
# shellcheck disable=SC2119 # need_all takes the names of further things to install; this script needs none.
need_all
build
build_base "$base"
cargo build --quiet --package redis-rl-tools --bin differential --profile tools
exec target/tools/differential --base "$base_module" --new "$module" --server "$server" "$@"
