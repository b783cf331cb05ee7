#!/usr/bin/env bash
# What the scripts share. Each script sources this file, which changes to the top folder of the checkout. Its functions find or
# install what a script needs, and print nothing unless they install something or fail.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# The scripts look for the module in this folder, so cargo must build there, whatever the user's own settings say.
export CARGO_TARGET_DIR=$root/target
module=$root/target/release/libredis_rl.so
machine=$(uname -m)

say() { printf '%s\n' "$@"; }

die() {
  printf '%s\n' "$@" >&2
  exit 1
}

# Checks that Rust is installed and new enough. Scripts call this before they install anything.
need_rust() {
  local least version
  # rustup installs cargo here. A shell that was started before does not have this folder in its PATH.
  [ ! -x "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" ] || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  least=$(sed -nE 's/^rust-version = "(.*)"/\1/p' Cargo.toml)
  type -P cargo rustc >/dev/null || die \
    "There is no Rust. Install Rust $least or newer as https://rustup.rs says, and run this again."
  version=$(rustc --version | awk '{ print $2 }') || die "rustc does not run. Install Rust $least or newer as https://rustup.rs says."
  at_least "$least" "${version%%-*}" ||
    die "Rust $version is too old: redis-rl needs $least or newer. \`rustup update stable\` brings it; rustup is at https://rustup.rs."
}

# Whether the second version is at least the first.
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# Whether bindgen will find libclang, and the headers of the compiler (stddef.h), which are not part of libclang itself.
has_libclang() {
  compgen -G "${LIBCLANG_PATH:-/usr/lib}/libclang*.so*" >/dev/null || some_exist \
    /usr/{lib,lib64,local/lib,lib/*-linux-gnu}/libclang{,-[0-9]*}.so* /usr/{lib,lib64}/llvm*/lib/libclang{,-[0-9]*}.so* \
    /opt/homebrew/opt/llvm/lib/libclang* || return 1
  some_exist /usr/lib*/clang/*/include/stddef.h /usr/lib*/llvm*/lib*/clang/*/include/stddef.h \
    /opt/homebrew/opt/llvm/lib/clang/*/include/stddef.h
}

some_exist() {
  local path
  for path; do [ ! -e "$path" ] || return 0; done
  return 1
}

# Prints the Debian packages of those arguments that this machine lacks.
missing_packages() {
  local thing
  for thing; do
    case $thing in
      compiler) command -v cc >/dev/null || echo gcc libc6-dev ;;
      c++) command -v g++ >/dev/null || echo g++ ;;
      libclang) has_libclang || echo libclang-dev ;;
      # The package redis-server would start a permanent service. redis-tools contains the same program and starts nothing.
      server) any_server >/dev/null || echo redis-tools ;;
      client) command -v redis-cli >/dev/null || command -v valkey-cli >/dev/null || echo redis-tools ;;
      redis-benchmark) command -v redis-benchmark >/dev/null || echo redis-tools ;;
      pip) python3 -m pip --version >/dev/null 2>&1 || echo python3-pip ;;
      venv) python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv ;;
      node) command -v node >/dev/null || echo nodejs ;;
      npm) command -v npm >/dev/null || echo npm ;;
      go) command -v go >/dev/null || echo golang-go ;;
      redigo) [ -e /usr/share/gocode/src/github.com/gomodule/redigo ] || echo golang-github-gomodule-redigo-dev ;;
      php) php -r 'exit(extension_loaded("redis") ? 0 : 1);' 2>/dev/null || echo php-cli php-redis ;;
      predis) [ -e /usr/share/php/Predis/autoload.php ] || echo php-predis ;;
      ruby) ruby -e 'require "redis"' 2>/dev/null || echo ruby ruby-redis ;;
      shellcheck) command -v shellcheck >/dev/null || echo shellcheck ;;
      valgrind) command -v callgrind_control >/dev/null || echo valgrind ;;
      openssl) command -v openssl >/dev/null || echo openssl ;;
      tcl) command -v tclsh >/dev/null || echo tcl ;;
      iproute2) command -v ip >/dev/null || echo iproute2 ;;
      dpkg-shlibdeps) command -v dpkg-shlibdeps >/dev/null || echo dpkg-dev ;;
      debootstrap) command -v debootstrap >/dev/null || echo debootstrap ;;
      asan) [ -n "$(asan_runtime)" ] || echo libclang-rt-14-dev ;;
      *) die "need: what is $thing?" ;;
    esac
  done | tr ' ' '\n' | awk '!seen[$0]++'
}

# Installs those of these things that are missing. No other function installs packages.
need() {
  local packages install sudo=()
  mapfile -t packages < <(missing_packages "$@")
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die \
    "These are missing here, by the names of their Debian packages: ${packages[*]}." \
    "redis-rl needs Redis 7.0.5 or newer (or Valkey 7.2 or newer) with its command line client, libclang with its headers, and a C compiler." \
    "  Fedora: dnf install valkey clang-devel gcc    Arch: pacman -S valkey clang gcc    Alpine: apk add valkey valkey-cli clang-dev build-base    macOS: brew install redis llvm"
  install=(apt-get install -y --no-install-recommends "${packages[@]}")
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || as_root "${install[@]}"
    sudo=(sudo)
  fi
  say "Installing ${packages[*]} (a minute or less)"
  "${sudo[@]}" apt-get update -qq || as_root "${install[@]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" -qq >/dev/null || as_root "${install[@]}"
}

# Ends the script, and prints the line with which root can install the missing packages.
as_root() {
  [ "$(id -u)" != 0 ] || die "apt-get could not install the packages."
  die "Packages are missing, and you are not root. Have root run this line, and then run this again:" "" \
    "  apt-get update && $*" ""
}

# Prints the path of an installed server of any version.
any_server() {
  command -v redis-server || command -v valkey-server || command -v redis-check-rdb || command -v valkey-check-rdb
}

# Prints the name and version that a server program reports: "Redis 7.0.15".
version_of() { "$1" --version 2>/dev/null | sed -nE 's/^(Redis|Valkey) .*v=([0-9.]+).*/\1 \2/p'; }

# Dies unless this program is a server that can load the module.
check_server() {
  local version
  version=$(version_of "$1") || true
  case $version in
    Redis\ *) at_least 7.0.5 "${version#* }" && return ;;
    Valkey\ *) at_least 7.2 "${version#* }" && return ;;
    *) die "$1 is not a Redis or Valkey server." ;;
  esac
  die "$1 is $version; redis-rl needs Redis 7.0.5 or newer, or Valkey 7.2 or newer. Name another with SERVER=/path/to/redis-server."
}

# Checks the server that SERVER names, if it names one. Scripts call this before they install anything.
check_named_server() {
  [ -n "${SERVER:-}" ] || return 0
  [ -n "$(type -P "$SERVER")" ] || die "SERVER=$SERVER: there is no such program."
  check_server "$SERVER"
}

# Sets `server` to the absolute path of the server to use: the one that SERVER names, or the installed one.
find_server() {
  check_named_server
  if [ -n "${SERVER:-}" ]; then
    server=$(realpath -s "$(type -P "$SERVER")")
    return
  fi
  server=$(any_server) || die "No server was found. Name one with SERVER=/path/to/redis-server."
  case $server in
    *-check-rdb)
      # The same program is the server when it is called by the name of the server.
      mkdir -p target/servers/installed
      ln -sfn "$server" "target/servers/installed/$(basename "${server%-check-rdb}")-server"
      server=$root/target/servers/installed/$(basename "${server%-check-rdb}")-server
      ;;
  esac
  check_server "$server"
}

# Prints a line for each of these names, `installed` or one of the table in scripts/servers.sh: the name, a tab, and the path of the
# program.
named_servers() {
  local name
  for name; do
    if [ "$name" = installed ]; then printf 'installed\t%s\n' "$server"; else scripts/servers.sh "$name" || return; fi
  done
}

# Finds or installs what all scripts need, and the things that the arguments name.
need_all() {
  need_rust
  check_named_server
  if [ -n "${SERVER:-}" ]; then need compiler libclang client "$@"; else need compiler libclang server client "$@"; fi
  find_server
}

# Builds the module.
build() {
  [ -e "$module" ] || say "Building the module; the first time takes about a minute on two cores."
  cargo build --release
  # Cargo does not always write the file again. `make install` compares its time with those of the sources.
  touch -c "$module"
}

# Sets `python` to a Python that has the packages of the recipes. Of the programs in a virtual environment, only its Python works in
# a path with a space: the others contain that path.
recipes_python() {
  python=$root/target/recipes/python/bin/python
  "$python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear target/recipes/python
  "$python" -m pip install --quiet --disable-pip-version-check -r examples/python/requirements.txt
}

# Installs the Node.js packages of the client package, and links those that the recipes import, and the client package itself, as it is
# packed.
recipes_node() {
  local package
  node_packages clients/node
  node_tarball
  rm -rf examples/node/node_modules
  mkdir examples/node/node_modules
  for package in @redis ioredis redis; do
    ln -s "../../../clients/node/node_modules/$package" "examples/node/node_modules/$package"
  done
  ln -s ../../../target/clients/node/package examples/node/node_modules/redis-rl
}

# Packs the client package for Node.js, and unpacks it in target/clients/node/package.
node_tarball() {
  rm -rf target/clients/node
  mkdir -p target/clients/node
  npm pack ./clients/node --pack-destination target/clients/node --loglevel=error >/dev/null
  tar -xzf target/clients/node/redis-rl-*.tgz -C target/clients/node
}

# Installs the Node.js packages that a folder's package-lock.json names, unless they are there, and builds the folder's own package, if
# it is one. No package runs a script.
node_packages() {
  [ "$1/node_modules/.package-lock.json" -nt "$1/package-lock.json" ] ||
    npm --prefix "$1" ci --ignore-scripts --no-audit --no-fund --loglevel=error
  npm --prefix "$1" run --silent --if-present build
}

# Sets `python` to a Python that has the packages with which the client packages are tested, but not redis-rl itself.
clients_python() { clients_python_of python3; }

# The same, with the Python of this name.
clients_python_of() {
  local folder=target/clients/$1
  python=$root/$folder/bin/python
  "$python" -m pip --version >/dev/null 2>&1 || "$1" -m venv --clear "$folder"
  "$python" -m pip install --quiet --disable-pip-version-check -r clients/python/tests/requirements.txt
}

# Prints the version in Cargo.toml.
version() { sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml; }

# Prints the newest version of the GNU C library whose symbols a library uses: it needs this version, or a newer one.
needed_glibc() { objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1 | sed 's/GLIBC_//'; }

# Prints the time that files in packages get, in seconds: that of the last commit, so that it does not depend on the build.
source_date() { printf '%s\n' "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}"; }

# Builds the module of an older commit, once, and sets `base_module` to its path.
build_base() {
  local commit folder=$root/target/differential
  [ -n "${1:-}" ] || die "Name the commit to compare with: BASE=<commit>"
  commit=$(git rev-parse --verify --quiet "$1^{commit}") || die "BASE=$1: there is no such commit."
  base_module=$folder/$commit.so
  [ ! -e "$base_module" ] || return 0
  say "Building the module of $commit; the first time takes about a minute on two cores."
  rm -rf "$folder/source"
  mkdir -p "$folder/source"
  git archive "$commit" | tar -x -C "$folder/source"
  # A package in a folder of a workspace must be a member of it, or a workspace of its own.
  grep -q '^\[workspace\]' "$folder/source/Cargo.toml" || printf '\n[workspace]\n' >>"$folder/source/Cargo.toml"
  # The times of the files are those of the commit, and may be older than the last build of another one.
  find "$folder/source" -name '*.rs' -exec touch {} +
  (cd "$folder/source" && CARGO_TARGET_DIR=$folder/build cargo build --release --lib)
  mv "$folder/build/release/libredis_rl.so" "$base_module"
  rm -rf "$folder/source"
}

asan_runtime() { compgen -G "/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-$machine.so" | sort -V | tail -n 1; }
