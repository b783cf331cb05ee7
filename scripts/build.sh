#!/usr/bin/env bash
# Installs missing packages, and builds the module, unless the argument is `deps`.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck disable=SC2119 # need_all has optional arguments.
need_all
[ "${1:-}" = deps ] || build
