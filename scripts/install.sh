#!/usr/bin/env bash
# Installs the module for the servers of this machine, or removes it: install.sh install|uninstall
#   PREFIX      /usr/local by default
#   MODULEDIR   the folder of the library, PREFIX/lib/redis/modules by default
#   DESTDIR     a folder in which PREFIX and MODULEDIR are made, for a package
# PREFIX/share/redis-rl/installed lists what was installed, and the folders that were made for it. `uninstall` removes these.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prefix=${PREFIX:-/usr/local}
prefix=${prefix%/}
modules=${MODULEDIR:-$prefix/lib/redis/modules}
modules=${modules%/}
dest=${DESTDIR:-}
dest=${dest%/}
for path in "$prefix" "$modules" "$dest"; do
  [[ -z $path || $path = /* ]] || die "PREFIX, MODULEDIR and DESTDIR must be absolute paths, not $path."
done
share=$prefix/share/redis-rl
list=$dest$share/installed

# Whether the library exists, and nothing that it is built from is newer.
up_to_date() { [ -e "$module" ] && [ -z "$(find src Cargo.toml Cargo.lock -newer "$module" -print -quit)" ]; }

# Builds the module if that is needed and possible. A build as root in another user's checkout would leave files that the user
# can't replace.
build_if_needed() {
  ! up_to_date || return 0
  local owner
  owner=$(stat -c %U . 2>/dev/null || stat -f %Su .)
  if [ "$(id -u)" = 0 ] && [ "$owner" != root ]; then
    [ ! -e "$module" ] || die "target/release/libredis_rl.so is older than its sources. Run \`make build\` as $owner, and then this again."
    die "The module is not built yet. Run \`make build\` as $owner, and then this again."
  fi
  if [ -e "$module" ] && ! type -P cargo "${CARGO_HOME:-${HOME:-}/.cargo}/bin/cargo" >/dev/null; then
    say "There is no Rust here: installing target/release/libredis_rl.so as it is, although it is older than its sources."
    return 0
  fi
  need_rust
  need compiler libclang
  build
}

# make_folder PATH: makes a folder in DESTDIR, and notes each folder that did not exist.
folders=()
make_folder() {
  [ -z "$1" ] || [ -d "$dest$1" ] && return
  make_folder "${1%/*}"
  mkdir "$dest$1"
  chmod 755 "$dest$1"
  folders+=("$1")
}

# put MODE PATH: installs its input under a temporary name, and renames it. A server that has mapped the file of the old version
# keeps it; writing into that file would crash the server.
put() {
  make_folder "${2%/*}"
  local new=$dest${2%/*}/.${2##*/}.new
  rm -f "$new"
  cat >"$new"
  chmod "$1" "$new"
  mv -f "$new" "$dest$2"
}

case ${1:-} in
  install)
    build_if_needed
    [ -z "$dest" ] || mkdir -p "$dest"
    known=()
    [ ! -e "$list" ] || mapfile -t known <"$list"
    put 755 "$modules/libredis_rl.so" <"$module"
    put 644 "$share/redis-rl.conf" < <(sed "s|/usr/share/redis-rl|$share|; s|/usr/lib/redis/modules|$modules|" packaging/redis-rl.conf)
    put 644 "$prefix/share/doc/redis-rl/LICENSE" <LICENSE
    # `uninstall` reads the list from its end: first the files, and then the folders, the last one that was made first.
    files=("$modules/libredis_rl.so" "$share/redis-rl.conf" "$prefix/share/doc/redis-rl/LICENSE" "$share/installed")
    put 644 "$share/installed" < <(printf '%s\n' "${known[@]}" "${folders[@]}" "${files[@]}" | awk 'NF && !seen[$0]++')
    say "Installed $dest$modules/libredis_rl.so. To load it, add this line to redis.conf or valkey.conf, and restart the server:" "" \
      "  loadmodule $modules/libredis_rl.so" ""
    ;;
  uninstall)
    [ -e "$list" ] || die "$list does not exist: nothing was installed in this PREFIX and DESTDIR."
    mapfile -t paths <"$list"
    for ((at = ${#paths[@]} - 1; at >= 0; at--)); do
      path=$dest${paths[at]}
      if [ -d "$path" ]; then rmdir "$path" 2>/dev/null || say "$path stays: it is not empty."; else rm -f "$path"; fi
    done
    say "Removed. Remove what only the module knows from redis.conf or valkey.conf and from the aclfile, too, or the server does not start:" \
      "the line that loads it, the settings rl.*, and its commands in ACL users (+rl.gcra, +cl.throttle, +gcra, +@ratelimit)."
    ;;
  *) die "Usage: install.sh install|uninstall" ;;
esac
