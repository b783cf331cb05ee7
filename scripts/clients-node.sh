#!/usr/bin/env bash
# Tests the client package for Node.js in clients/node on real servers: Node.js 18.20 or newer.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all node npm
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

clients_node
cd clients/node
# The files one after the other: each starts several servers, and some tests watch the time.
for file in test/*.test.mjs; do
  say "$file"
  node --test "$file"
done
