#!/usr/bin/env bash
# Simulates calls that wait in the lines of several keys, without a server. STEPS is how many steps it makes, SEED the seed of the
# first world. A finding names its seed.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need compiler libclang
export LINES_STEPS=$STEPS LINES_SEED=$SEED
exec cargo test --quiet --test core -- --nocapture lines::no_call
