#!/usr/bin/env bash
# Tests the Python client package, clients/python, on servers, clusters and behind Sentinel. Checks its types, that the half for threads
# is made from the one for asyncio, and that it installs into an empty virtual environment. SERVERS names the servers, as for `make
# matrix`: names of the table in scripts/servers.sh, or `installed`, which is the default. Arguments are those of pytest.
#
# On each server it tests the oldest redis-py, and the one of clients/python/tests/requirements.txt. On the first server also the releases
# that REDIS_PYS names, such as REDIS_PYS="6.4.0 7.1.0", and the Pythons that PYTHONS names: Debian 13's by default, if it is there.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed}"
need_all venv openssl
servers=$(named_servers "${names[@]}" | cut -f 2)
build
export REDIS_RL_MODULE=$module REDIS_RL_SERVER

clients_python
"$python" -B clients/python/make_sync.py --check

# The same packages with another redis-py: found first, in a folder of its own.
read -r -a others <<<"${REDIS_PYS:-}"
for version in 5.0.1 "${others[@]}"; do
  folder=$root/target/clients/redis-$version
  [ -e "$folder/redis" ] ||
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "redis==$version"
done

# Whether a server was built without TLS, as some of the table are. It ends at once, because it gets no certificate.
has_no_tls() { [[ $(timeout 20 "$1" --port 0 --tls-port 1 --save '' 2>&1) =~ 'Failed finding TLS support'|'Bad directive' ]]; }

# The tests mostly wait, so more run at the same time than there are cores. Each of the processes has servers of its own.
tests() { "$1" -B -m pytest -q -p no:cacheprovider -n 4 --dist worksteal --timeout 300 "${but[@]}" clients/python/tests "${@:2}"; }
while IFS= read -r -u 3 REDIS_RL_SERVER; do
  say "The Python client package on $(version_of "$REDIS_RL_SERVER")"
  but=()
  if [ "$REDIS_RL_SERVER" != "$server" ] && has_no_tls "$REDIS_RL_SERVER"; then
    say "This server was built without TLS: the tests of TLS do not run on it."
    but=(-k "not tls")
  fi
  tests "$python" "$@"
  for version in 5.0.1 "${others[@]}"; do
    say "With redis-py $version:"
    PYTHONPATH=$root/target/clients/redis-$version tests "$python" "$@"
  done
  for name in ${PYTHONS-python3.13}; do
    if ! "$name" -c '' 2>/dev/null; then
      say "There is no $name here: the tests do not run with it."
      continue
    fi
    clients_python_of "$name"
    say "With $("$python" --version):"
    tests "$python" "$@"
    clients_python
  done
  # What follows runs on one server.
  others=() PYTHONS=''
done 3<<<"$servers"
REDIS_RL_SERVER=$server

export MYPYPATH=$root/clients/python/src
(cd clients/python && "$python" -m mypy --strict --cache-dir "$root/target/clients/mypy" src tests/usage.py)
# It runs on Node.js, which it downloads if there is none.
if type -P node >/dev/null || [ -n "${CI:-}" ]; then
  (cd clients/python && "$python" -m pyright --pythonpath "$python" src tests/usage.py)
fi

# Runs the line of the README in a copy, because pip writes into the folder that it installs from.
empty=$root/target/clients/empty
rm -rf "$empty"
mkdir -p "$empty/checkout/clients"
cp -r clients/python "$empty/checkout/clients/python"
python3 -m venv "$empty/venv"
pip() { "$empty/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
line=$(grep -m 1 '^pip install ' clients/python/README.md)
cd "$empty/checkout"
eval "$line"
cd "$root"
"$empty/venv/bin/python" -B clients/python/tests/installed.py
