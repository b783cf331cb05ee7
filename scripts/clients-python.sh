#!/usr/bin/env bash
# Tests the Python client package, clients/python, on servers, clusters and behind Sentinel: Python 3.11 or newer. Checks its types,
# and that it installs into an empty virtual environment.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv openssl
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

clients_python
export MYPYPATH=$root/clients/python/src
(cd clients/python && "$python" -m mypy --cache-dir "$root/target/clients/mypy" src tests/usage.py)
"$python" -B -m pytest -q -p no:cacheprovider clients/python/tests "$@"

# Runs the line of the README in a copy, because pip writes into the folder that it installs from.
empty=$root/target/clients/empty
rm -rf "$empty"
mkdir -p "$empty/checkout/clients"
cp -r clients/python "$empty/checkout/clients/python"
python3 -m venv "$empty/venv"
pip() { "$empty/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
line=$(grep -m 1 '^pip install ' clients/python/README.md)
cd "$empty/checkout"
eval "$line"
cd "$root"
"$empty/venv/bin/python" -B clients/python/tests/installed.py
