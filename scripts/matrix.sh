#!/usr/bin/env bash
# Runs the integration tests on each server of SERVERS: names of the table in scripts/servers.sh, or `installed`. The default is
# all servers. In CI, the default runs only some tests on those servers of which it runs all on a newer or older one of the same kind,
# and runs the tests that are the same on all servers on the installed one only.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-}"
# shellcheck disable=SC2119 # need_all has optional arguments.
need_all
if [ ${#names[@]} = 0 ]; then
  list=$(named_servers installed && scripts/servers.sh)
else
  list=$(named_servers "${names[@]}")
fi
build

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
# Some tests put these paths into a command or a configuration, where a space would end the path. So paths with a space are
# replaced by short ones. For the server that is a script, not a link, because a server may look for files beside itself.
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
# These servers differ from others of the table in how they load, copy and replicate, and hardly in what commands do. So in CI they
# run the tests of that.
few_in_ci=' redis-8.0 redis-8.2.3 valkey-8.1 '
few=(shortcuts:: listeners:: copies:: forkless:: operate:: crash:: waiting:: block::each_)
# Tests of the documents, of the tests' own helpers and of clients of redis-cell. What they find does not depend on the server; nor
# does what the tests of the tools find.
same=(--skip readme:: --skip harness:: --skip throttle::the_client)
# The tests mostly wait, so more run at the same time than there are processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
# Runs the tests of the module and those of the tools, which start servers, too.
test_on() {
  local name=$1 status=0
  export REDIS_RL_MODULE=$module REDIS_RL_SERVER
  REDIS_RL_SERVER=$(short "$2")
  if [ -z "${CI:-}" ] || [ -n "${SERVERS:-}" ] || [ "$name" = installed ]; then
    cargo test --test server || status=1
    cargo test --package redis-rl-tools || status=1
  elif [[ $few_in_ci == *" $name "* ]]; then
    cargo test --test server -- "${few[@]}" || status=1
  else
    cargo test --test server -- "${same[@]}" || status=1
  fi
  return $status
}
rows=()
failed=
while IFS=$'\t' read -r -u 3 name program; do
  version=$(version_of "$program")
  printf '\n%s\n' "== The integration tests on $version ($program)"
  began=$SECONDS
  verdict=passed
  test_on "$name" "$program" </dev/null 2>&1 | tee "$log" || verdict=FAILED
  [ $verdict = passed ] || failed=yes
  rows+=("$version: $(grep -c '^test .* ok$' "$log" || true) tests passed, $(grep -c '^test .* FAILED$' "$log" || true) failed, $((SECONDS - began)) seconds")
done 3<<<"$list"

printf '\n'
printf '%s\n' "${rows[@]}"
[ -z "$failed" ]
