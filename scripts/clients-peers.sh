#!/usr/bin/env bash
# Runs the tests that `limits` and flask-limiter have for their storage on Redis, with the storage of the Python client package in
# its place: on a server, a cluster and behind Sentinel, with passwords and TLS. The tests are those of the source packages.
# clients/python/tests/peers/run.py lists what is replaced in them, and the tests that are known to fail, with the reasons.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv openssl
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

peers=clients/python/tests/peers
python=$root/target/clients/peers/bin/python
"$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear target/clients/peers
"$python" -m pip install --quiet --disable-pip-version-check -r "$peers/requirements.txt"

# The source packages of the versions that are installed. What builds them comes as wheels.
sources=$root/target/clients/peers-src
rm -rf "$sources"
mkdir -p "$sources"
mapfile -t packages < <(grep -E '^(limits|Flask-Limiter)==' "$peers/requirements.txt")
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary limits,Flask-Limiter --dest "$sources" "${packages[@]}"
for archive in "$sources"/*.tar.gz; do tar -xzf "$archive" -C "$sources"; done
"$python" -B "$peers/run.py" "$sources"
