#!/usr/bin/env bash
# Runs all checks: format, lints, unit and property tests, and the integration tests on a server. In CI also a little fuzzing, the
# integration tests on every server of the table in scripts/servers.sh, the recipes, the client packages, the programs of
# docs/languages.md, the files for monitoring, the packages to install, the demo and the plots.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
began=$SECONDS
if [ -n "${CI:-}" ]; then
  say "All tests on all servers: 40 to 50 minutes on two cores."
  need_all shellcheck c++ pip venv node npm openssl go redigo php predis ruby
elif [ -d target/debug ]; then
  say "All tests: about 5 minutes on two cores, and longer if much has to be compiled again."
  need_all
else
  say "All tests: about 10 minutes on two cores the first time, and less from then on."
  need_all
fi

scripts/lint.sh
build
cargo test --lib --test core
if [ -n "${CI:-}" ]; then
  SECONDS_EACH=15 scripts/fuzz.sh
  scripts/matrix.sh
  scripts/recipes.sh
  scripts/clients.sh
  scripts/languages.sh
  scripts/monitoring.sh
  # In CI, a machine that can't have a bare root fails here: nothing else tests the packages.
  scripts/packages.sh
  mkdir -p target/plots
  scripts/tool.sh demo --seconds 3 --picture target/plots/demo.svg
  scripts/tool.sh plots --out "$root/target/plots" --late 2000
else
  SERVERS=installed scripts/matrix.sh
fi
say "Everything passed, in $(((SECONDS - began) / 60)) minutes and $(((SECONDS - began) % 60)) seconds."
