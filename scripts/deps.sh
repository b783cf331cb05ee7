#!/usr/bin/env bash
# Installs what is missing.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck disable=SC2119 # It takes more than it is given here.
need_all
