#!/usr/bin/env bash
# Tests the recipes of examples/ on a server: Python 3.11, Node.js 18.20 and Rust, or newer.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv node npm
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

# Of the programs in a virtual environment, only its Python works in a path with a space: the others contain that path.
python=$root/target/recipes/python/bin/python
"$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear target/recipes/python
"$python" -m pip install --quiet --disable-pip-version-check -r examples/python/requirements.txt
"$python" -B -m pytest -q -p no:cacheprovider examples/python
(
  cd examples/node
  [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --loglevel=error
  npm test
)
cd examples/rust
export CARGO_TARGET_DIR=$root/target/recipes/rust
cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
cargo test --locked
