#!/usr/bin/env bash
# Tests monitoring/ and docs/monitoring.md: runs servers with the module, redis_exporter and Prometheus with the files that
# operators copy. SERVERS names the servers, as for `make matrix`; the default is the installed one and three others.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed redis-8.2.3 redis-8.6.2 valkey-9.1.2}"
need_all venv
tools=$root/target/monitoring

# Sets `prometheus`, `promtool` and `exporter` to programs of this machine, if it has all three.
find_programs() {
  prometheus=$(type -P prometheus) && promtool=$(type -P promtool) &&
    exporter=$(type -P prometheus-redis-exporter || type -P redis_exporter)
}

# Unpacks the programs of the distribution's packages into target/monitoring. They are not installed, because their packages would
# start services; so this needs no root.
unpack_programs() {
  prometheus=$tools/prometheus promtool=$tools/promtool exporter=$tools/prometheus-redis-exporter
  if [ -x "$prometheus" ] && [ -x "$promtool" ] && [ -x "$exporter" ]; then return; fi
  type -P apt-get dpkg >/dev/null || die "These are missing: prometheus with promtool, and redis_exporter 1.45 or newer." \
    "Install them, and run this again."
  say "Downloading prometheus and prometheus-redis-exporter (a few seconds)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  # The lists of packages of this machine may be missing or old. So apt uses its sources, but lists of its own.
  private_apt() {
    local program=$1
    shift
    (cd "$work" && "$program" -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Acquire::Languages=none \
      -o APT::Sandbox::User='' "$@")
  }
  private_apt apt-get update || die "apt-get could not read the lists of packages."
  local packages=(prometheus prometheus-redis-exporter) package
  # Since Debian 13, promtool is a package of its own.
  if private_apt apt-cache show promtool >/dev/null 2>&1; then packages+=(promtool); fi
  private_apt apt-get download "${packages[@]}" || die "apt-get could not download ${packages[*]}."
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/root"; done
  rm -rf "$tools"
  mkdir -p "$(dirname "$tools")"
  mv "$work/root/usr/bin" "$tools"
  rm -rf "$work"
}

find_programs || unpack_programs
for program in "$prometheus" "$promtool" "$exporter"; do
  "$program" --version >/dev/null 2>&1 || die "$program does not run on this machine."
done
build

servers=$(named_servers "${names[@]}" | cut -f 2)
export REDIS_RL_MODULE=$module REDIS_RL_SERVERS=$servers
export REDIS_RL_PROMETHEUS=$prometheus REDIS_RL_PROMTOOL=$promtool REDIS_RL_EXPORTER=$exporter

# The tests need two of the packages of the recipes, in the same virtual environment.
python=$root/target/recipes/python/bin/python
"$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear target/recipes/python
mapfile -t packages < <(grep -E '^(redis|pytest)==' examples/python/requirements.txt)
"$python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
"$python" -B -m pytest -q -p no:cacheprovider tests/monitoring
