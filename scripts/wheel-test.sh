#!/usr/bin/env bash
# Tests the packages of `make wheel` on this machine, installed in empty folders: the command, the launcher, the fixture of pytest and
# the helper for node:test, and the two example projects. Some tests mount a file system, so it needs root. With the argument
# `made`, tests the files that are in target/dist.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need venv node npm
[ "${1:-}" = made ] || scripts/wheel.sh
unset REDIS_RL_SERVER REDIS_RL_MODULE

# A path with a space, which no file of the checkout is in.
work=$(mktemp -d "${TMPDIR:-/tmp}/redis-rl wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -r packaging/server/python/example "$work/python"
cp -r packaging/server/node/example "$work/node"
python3 -m venv "$work/venv"
pip() { "$work/venv/bin/python" -m pip --quiet --disable-pip-version-check install "$@"; }
wheel=$(echo "$root/target/dist/redis_rl_server-$(version)"-*.whl)
tarball=$root/target/dist/redis-rl-server-$(version)-linux-$machine.tgz
pip "$wheel"
pip -r "$work/python/requirements.txt"
(cd "$work/python" && "$work/venv/bin/python" -B -m pytest -q -p no:cacheprovider)
npm --prefix "$work/node" install --save-dev --no-audit --no-fund --loglevel=error "$tarball" >/dev/null
(cd "$work/node" && npm test --loglevel=error)

cp packaging/server/tests/server.test.mjs "$work/node/"
export REDIS_RL_COMMANDS="$work/venv/bin/redis-rl:$work/node/node_modules/.bin/redis-rl"
export REDIS_RL_README=$root/packaging/server/README.md
"$work/venv/bin/python" -B -m pytest -q -p no:cacheprovider packaging/server/tests
(cd "$work/node" && node --test server.test.mjs)
