#!/usr/bin/env bash
# The integration tests on each server of SERVERS: names of the table in scripts/servers.sh, or `installed`. By default on all.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-}"
# shellcheck disable=SC2119 # It takes more than it is given here.
need_all
if [ ${#names[@]} = 0 ]; then
  list=$'installed\t'$server$'\n'$(scripts/servers.sh)
elif [ "${names[*]}" = installed ]; then
  list=$'installed\t'$server
else
  list=$(for name in "${names[@]}"; do
    if [ "$name" = installed ]; then printf 'installed\t%s\n' "$server"; else scripts/servers.sh "$name"; fi
  done)
fi
build

mapfile -t tests < <(integration_tests)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
# Some tests put these paths between the words of a command or a configuration, where a space would divide them: they get short
# ones. Not a link to the server, as a server may look for files beside itself.
if [[ $root == *[[:space:]]* ]]; then
  ln -s "$module" "$work/libredis_rl.so"
  module=$work/libredis_rl.so
fi
short() {
  [[ $1 == *[[:space:]]* ]] || { printf '%s\n' "$1"; return; }
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$1" >"$work/server"
  chmod +x "$work/server"
  printf '%s\n' "$work/server"
}
rows=()
failed=
while IFS=$'\t' read -r -u 3 _ program; do
  version=$(version_of "$program")
  printf '\n%s\n' "== The integration tests on $version ($program)"
  began=$SECONDS
  verdict=passed
  REDIS_RL_MODULE=$module REDIS_RL_SERVER=$(short "$program") cargo test --no-fail-fast "${tests[@]/#/--test=}" </dev/null 2>&1 | tee "$log" || verdict=FAILED
  [ $verdict = passed ] || failed=yes
  rows+=("$version: $(grep -c '^test .* ok$' "$log" || true) tests passed, $(grep -c '^test .* FAILED$' "$log" || true) failed, $((SECONDS - began)) seconds")
done 3<<<"$list"

printf '\n'
printf '%s\n' "${rows[@]}"
[ -z "$failed" ]
