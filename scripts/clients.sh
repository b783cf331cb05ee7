#!/usr/bin/env bash
# Tests the client packages in clients/, or measures them: clients.sh [python|node|rust|peers|load|outages]
#
# Without an argument the first five, one after the other. SERVERS names the servers of the first three, as for `make matrix`: names of the
# table in scripts/servers.sh, such as SERVERS="installed valkey-9.1.2"; the default is the installed one. Further arguments after
# `python` are those of pytest.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
read -r -a names <<<"${SERVERS:-installed}"

# On servers, clusters and behind Sentinel. Checks the types, too, that the half for threads is made from the one for asyncio, and that the
# package installs into an empty virtual environment. Further arguments are those of pytest.
#
# On each server it tests the oldest redis-py, and the one of clients/python/tests/requirements.txt. On the first server also the releases
# that REDIS_PYS names, such as REDIS_PYS="6.4.0 7.1.0", and the Pythons that PYTHONS names: Debian 13's by default, if it is there.
test_python() {
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
}

# With the Node.js of Debian 12 and with the newest, or with those that NODES names, versions such as 22.21.0, which npm installs, or
# `installed`. The first version runs on all servers, the others on one.
test_node() {
  read -r -a versions <<<"${NODES:-18.20.4 26.10.0}"
  need_all node npm openssl
  servers=$(named_servers "${names[@]}" | cut -f 2)
  build
  node_packages clients/node

  # Sets `node` to Node.js of this version.
  find_node() {
    local folder=$root/target/clients/nodes/$1 platform
    node=$(type -P node)
    [ "$1" != installed ] || return 0
    platform=linux-$([ "$machine" = x86_64 ] && echo x64 || echo arm64)
    node=$folder/node_modules/node-$platform/bin/node
    [ -x "$node" ] ||
      npm install --prefix "$folder" --no-save --no-audit --no-fund --loglevel=error "node-$platform@$1"
  }
  for version in "${versions[@]}"; do find_node "$version"; done
  cd clients/node

  # The tests mostly wait, so more files run at the same time than there are cores: each has servers of its own. The longest come first.
  files=(waits failures pause package topology outage behaviour wallet named admission store frameworks values)
  [ ${#files[@]} = "$(find test -name '*.test.mjs' | wc -l)" ] || die "scripts/clients.sh does not name each file of tests."
  logs=$(mktemp -d)
  trap 'rm -rf "$logs"' EXIT
  export REDIS_RL_MODULE=$module REDIS_RL_SERVER logs node

  # Runs a file of tests, and prints its output if it fails.
  # shellcheck disable=SC2016 # The inner bash expands these.
  one='timeout --foreground 900 "$node" --test --test-reporter=tap "test/$1.test.mjs" >"$logs/$1" 2>&1 || { cat "$logs/$1"; exit 1; }
    printf "%s: %s passed in %.0f s\n" "$1" $(sed -nE "s/^# pass //p" "$logs/$1") $(sed -nE "s/^# duration_ms ([0-9]+).*/\1e-3/p" "$logs/$1")'
  for version in "${versions[@]}"; do
    find_node "$version"
    while IFS= read -r -u 3 REDIS_RL_SERVER; do
      say "The Node.js client package on $(version_of "$REDIS_RL_SERVER"), Node.js $("$node" --version)"
      printf '%s\n' "${files[@]}" | PATH=$(dirname "$node"):$PATH xargs -P 4 -I '{}' bash -c "$one" - '{}' ||
        die "The tests of the Node.js client package failed."
    done 3<<<"$servers"
    servers=$(head -n 1 <<<"$servers")
  done
}

# Also the programs of examples/rust: format, lints, documentation, and the tests on servers that they start.
test_rust() {
  need_all openssl
  build
  export REDIS_RL_MODULE=$module

  cd clients/rust
  export CARGO_TARGET_DIR=$root/target/clients/rust
  cargo fmt --check
  cargo clippy --locked --all-features --all-targets -- -D warnings
  # The features build without each other.
  for features in "" tower zone tls; do
    cargo clippy --locked --no-default-features --features "$features" -- -D warnings
  done
  RUSTDOCFLAGS="-D warnings" cargo doc --locked --all-features --no-deps

  # Most tests wait, for a server or for a lease to end: more of them than there are processors run at a time.
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
  # These tests need only a server of any version.
  any=(--test behaviour --test admit --test attack --test named --test outage --test reliability --test topology --test waits --test wallet)

  cargo test --locked --all-features --no-run
  for name in "${names[@]}"; do
    if [ "$name" = installed ]; then
      REDIS_RL_SERVER=$server cargo test --locked --all-features
    else
      say "" "Tests on $name:"
      # tls.rs is not among them: some of these servers are built without TLS.
      REDIS_RL_SERVER=$("$root/scripts/servers.sh" "$name" | cut -f 2) cargo test --locked --all-features "${any[@]}"
    fi
  done
}

# Runs the tests that `limits` and flask-limiter have for their storage on Redis, with the storage of the Python client package in
# its place: on a server, a cluster and behind Sentinel, with passwords and TLS. The tests are those of the source packages.
# clients/python/tests/peers/run.py lists what is replaced in them, and the tests that are known to fail, with the reasons.
test_peers() {
  need_all venv openssl
  build
  export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

  peers=clients/python/tests/peers
  python=$root/target/clients/peers/bin/python
  "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear target/clients/peers
  "$python" -m pip install --quiet --disable-pip-version-check -r "$peers/requirements.txt"

  # The source packages of the versions that are installed. What builds them comes as wheels.
  sources=$root/target/clients/peers-src
  rm -rf "$sources"
  mkdir -p "$sources"
  mapfile -t packages < <(grep -E '^(limits|Flask-Limiter)==' "$peers/requirements.txt")
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary limits,Flask-Limiter --dest "$sources" "${packages[@]}"
  for archive in "$sources"/*.tar.gz; do tar -xzf "$archive" -C "$sources"; done
  "$python" -B "$peers/run.py" "$sources"
}

# Tests the three client packages together: 20 processes on one key, for LOAD_SECONDS=60 seconds. clients/load/load.py describes
# what it checks.
test_load() {
  need_all venv node npm
  build
  export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

  clients_python
  node_packages clients/node
  export CARGO_TARGET_DIR=$root/target/clients/rust
  (cd clients/rust && cargo build --locked --profile test --all-features --example spender)
  export REDIS_RL_SPENDER=$CARGO_TARGET_DIR/debug/examples/spender
  "$python" -B clients/load/load.py --seconds "${LOAD_SECONDS:-60}"
}

# Measures how many requests a second web services answer while their Redis works, is stopped, refuses connections, or is gone: Flask under
# gunicorn and FastAPI under uvicorn, Express, and axum. Each starts servers of its own. The tables of docs/outages.md come from it.
measure_outages() {
  need_all venv node npm
  build
  export REDIS_RL_MODULE=$module REDIS_RL_SERVER=$server

  clients_python
  say "" "Flask and FastAPI:"
  PYTHONPATH=$root/clients/python/src "$python" -B clients/python/outage.py --seconds "${SECONDS_EACH:-5}"
  node_packages clients/node
  say "" "Express:"
  node --no-warnings clients/node/outage.mjs "${SECONDS_EACH:-5}" open
  say "" "axum:"
  cd clients/rust
  CARGO_TARGET_DIR=$root/target/clients/rust cargo run --quiet --locked --release --example outage --features tower -- open "${SECONDS_EACH:-5}"
}

case "${1:-}" in
  python) test_python "${@:2}" ;;
  node) test_node ;;
  rust) test_rust ;;
  peers) test_peers ;;
  load) test_load ;;
  outages) measure_outages ;;
  "") for part in python node rust peers load; do scripts/clients.sh "$part"; done ;;
  *) die "clients.sh: python, node, rust, peers, load or outages, not $1." ;;
esac
