#!/usr/bin/env bash
# Runs all checks: format, lints, unit and property tests, and the integration tests on a server. In CI also a little fuzzing, the
# integration tests on every server of the table in scripts/servers.sh, two minutes of checked histories, the recipes, the client
# packages, the programs of docs/languages.md, the files for monitoring, the packages to install, the demo and the plots.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
began=$SECONDS began_at=$(date +%s)
if [ -n "${CI:-}" ]; then
  say "All tests on all servers: about 40 minutes on two cores."
  need_all shellcheck c++ pip venv node npm openssl go redigo php predis ruby
elif [ -d target/debug ]; then
  say "All tests: about 5 minutes on two cores, and longer if much has to be compiled again."
  need_all
else
  say "All tests: about 10 minutes on two cores the first time, and less from then on."
  need_all
fi

# stage NAME COMMAND...: runs a part of the checks, and notes how long it takes.
times=()
stage() {
  local name=$1 from=$SECONDS
  shift
  say "" "== $name"
  "$@"
  times+=("$(printf '%5d s  %s' $((SECONDS - from)) "$name")")
  say "$name: passed after $((SECONDS - from)) seconds"
}
# Runs two groups of stages at the same time, because many tests mostly wait. The second group takes what the first one leaves of the
# processors, and what it prints comes when both have ended.
both() {
  local before=${#times[@]}
  second_log=$(mktemp)
  # In a process group of its own, so that all of it can be ended.
  set -m
  (
    renice -n 10 -p "$BASHPID" >/dev/null
    "$2"
    printf '%s\n' "${times[@]:before}" >"$second_log.times"
  ) </dev/null >"$second_log" 2>&1 &
  second=$!
  set +m
  trap 'kill -- "-$second" 2>/dev/null || true; rm -f "$second_log" "$second_log.times"' EXIT
  "$1"
  wait "$second" || die "$(cat "$second_log")"
  cat "$second_log"
  mapfile -t -O ${#times[@]} times <"$second_log.times"
  trap - EXIT
  rm -f "$second_log" "$second_log.times"
}
matrix() { stage "Tests with a server, on each server" scripts/matrix.sh; }
fuzzing_and_packages() {
  SECONDS_EACH=15 stage "Fuzzing" scripts/fuzz.sh
  # In CI, a machine that can't have a bare root fails here: nothing else tests the packages.
  stage "Packages" scripts/packages.sh
}
# The tests of limits measure real time. So they come last, when the Rust client package has been compiled, and its tests mostly wait.
node_client_and_peers() {
  stage "The Node.js client package" scripts/clients.sh node
  stage "The tests of limits and flask-limiter" scripts/clients.sh peers
}
rust_client() { stage "The Rust client package" scripts/clients.sh rust; }
pictures() {
  mkdir -p target/plots
  scripts/tool.sh demo --seconds 3 --picture target/plots/demo.svg
  scripts/tool.sh plots --out "$root/target/plots" --late 2000
}

# About a minute on Redis, and one on Valkey, which moves slots as a whole.
histories() {
  local valkey
  export HOURS=0.01
  SEED=$began_at scripts/tool.sh histories
  valkey=$(scripts/servers.sh valkey-9.1.2 | cut -f 2)
  SEED=$((began_at + 1)) SERVER=$valkey scripts/tool.sh histories
}

stage "Format and lints" scripts/lint.sh
stage "The module" build
stage "Tests of the pure core" cargo test --lib --test core
if [ -n "${CI:-}" ]; then
  both matrix fuzzing_and_packages
  stage "Checked histories" histories
  stage "Recipes" scripts/recipes.sh
  stage "The Python client package" scripts/clients.sh python
  both node_client_and_peers rust_client
  stage "All client packages on one key" scripts/clients.sh load
  stage "Programs of docs/languages.md" scripts/recipes.sh languages
  stage "Monitoring" scripts/monitoring.sh
  stage "Demo and plots" pictures
else
  SERVERS=installed stage "Tests with a server" scripts/matrix.sh
fi
say "" "${times[@]}"
say "Everything passed, in $(((SECONDS - began) / 60)) minutes and $(((SECONDS - began) % 60)) seconds."
