#!/usr/bin/env bash
# Runs the programs of docs/languages.md against a server with the module: Go, Node.js, PHP, Python and Ruby.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all venv node npm go redigo php predis ruby
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server
recipes_python
recipes_node
exec "$python" -B -m pytest -q -p no:cacheprovider examples/languages
