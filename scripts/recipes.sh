#!/usr/bin/env bash
# Tests the recipes of examples/ on a server: Python 3.11 and Node.js 18.20, or newer. The programs in Rust are examples of the Rust
# client package: `scripts/clients.sh rust` runs them. With the argument `languages`, runs the programs of docs/languages.md instead:
# Go, Node.js, PHP, Python and Ruby.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
things=(venv node npm)
[ "${1:-}" != languages ] || things+=(go redigo php predis ruby)
need_all "${things[@]}"
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

recipes_python
# The tests mostly wait, so more run at the same time than there are cores. Each of the processes has servers of its own.
at_the_same_time=(-n 4 --dist worksteal)
if [ "${1:-}" = languages ]; then
  recipes_node
  exec "$python" -B -m pytest -q -p no:cacheprovider "${at_the_same_time[@]}" examples/languages
fi
"$python" -B -m pytest -q -p no:cacheprovider "${at_the_same_time[@]}" --timeout 300 examples/python
recipes_node
node --test examples/node/test/*.test.mjs
