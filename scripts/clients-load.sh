#!/usr/bin/env bash
# Tests the three client packages together: 20 processes on one key, for LOAD_SECONDS=60 seconds. clients/load/load.py describes
# what it checks.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv node npm
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

clients_python
node_packages clients/node
export CARGO_TARGET_DIR=$root/target/clients/rust
(cd clients/rust && cargo build --locked --profile test --all-features --example spender)
export REDIS_RL_SPENDER=$CARGO_TARGET_DIR/debug/examples/spender
"$python" -B clients/load/load.py --seconds "${LOAD_SECONDS:-60}"
