#!/usr/bin/env bash
# Tests the client packages in clients/: each by itself, with the tests of limits and flask-limiter, and all of them together.
set -euo pipefail
scripts=$(dirname "${BASH_SOURCE[0]}")
"$scripts/clients-python.sh"
"$scripts/clients-node.sh"
"$scripts/clients-rust.sh"
"$scripts/clients-peers.sh"
"$scripts/clients-load.sh"
