#!/usr/bin/env bash
# Measures how many requests a second web services answer while their Redis works, is stopped, refuses connections, or is gone: Flask under
# gunicorn and FastAPI under uvicorn, Express, and axum. Each starts servers of its own. The tables of docs/outages.md come from it.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv node npm
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

clients_python
say "" "Flask and FastAPI:"
PYTHONPATH=$root/clients/python/src "$python" -B clients/python/outage.py --seconds "${SECONDS_EACH:-5}"
node_packages clients/node
say "" "Express:"
node --no-warnings clients/node/outage.mjs "${SECONDS_EACH:-5}" open
say "" "axum:"
cd clients/rust
CARGO_TARGET_DIR=$root/target/clients/rust cargo run --quiet --locked --release --example outage --features tower -- open "${SECONDS_EACH:-5}"
