#!/usr/bin/env bash
# Runs the README's two commands on a system that has only git, make and Rust: in a bare root of this Debian or Ubuntu release
# (debootstrap's smallest variant), in a fresh clone of the last commit, in a path with a space.
#
# Usage: bare.sh [--as root|user] [run|test|COMMAND]...
#   run         `make run`, and the lines that it suggests
#   test        `make test`
#   COMMAND     any other shell command, run in the clone
#   --as user   as a user without root's rights and without sudo: first `make run` must print a line for root, and root runs
#               exactly this line; then that user runs the steps
# It exits with 0 if all steps pass, with 3 if no bare root can be made here, and with 1 otherwise.
#
# It needs root, and installs debootstrap. The bare root uses this machine's package mirror, proxies, certificates, Rust, and its
# settings of cargo, pip and npm. debootstrap and each step run in namespaces of their own for processes and mounts, so that no
# process and no mount is left when they end. This script removes the bare root when it ends, also by a signal.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

as=root
if [ "${1:-}" = --as ]; then
  as=$2
  shift 2
fi
[ "$as" = root ] || [ "$as" = user ] || die "bare.sh: --as root or --as user, not $as."
[ $# -gt 0 ] || set -- run test

no_bare_root() {
  printf '%s\n' "No bare root can be made here: $1." >&2
  exit 3
}
[ "$(id -u)" = 0 ] || no_bare_root "only root can"
type -P apt-get >/dev/null || no_bare_root "this is neither Debian nor Ubuntu"
type -P cargo >/dev/null || no_bare_root "root has no Rust in its PATH"
[ "$(rustc --print sysroot)" != /usr ] || no_bare_root "the Rust of a distribution can't be lent to it, only one of rustup"
unshare --mount --pid --fork --kill-child sh -c 'mount -t tmpfs none /mnt && mount -t proc proc /mnt' 2>/dev/null ||
  no_bare_root "this machine does not let root mount anything"
(need debootstrap) || no_bare_root "debootstrap can't be installed"
codename=$(sed -nE 's/^VERSION_CODENAME=//p' /etc/os-release)
# shellcheck disable=SC2016 # apt fills in $(REPO_URI).
mirrors() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename"; }
[ -n "$(mirrors)" ] || apt-get update -qq || true
mirror=$(mirrors | head -n 1)
[ -n "$mirror" ] || no_bare_root "apt knows no mirror of $codename"

bare=$(mktemp -d "${TMPDIR:-/tmp}/bare.XXXXXX")
# Users other than root must be able to enter it.
chmod 755 "$bare"
step=
cleanup() {
  # Killing `unshare` kills the first process of the step's namespace, and with it all other processes there.
  [ -z "$step" ] || { kill -KILL "$step" 2>/dev/null && wait "$step" 2>/dev/null; } || true
  rm -rf --one-file-system "$bare" "$bare.log"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Runs a command in the background and waits for it. A signal interrupts the wait at once; it would not interrupt a command in the
# foreground.
interruptible() {
  "$@" &
  step=$!
  local status=0
  wait $step || status=$?
  step=
  return $status
}

say "Making a bare root (about half a minute)"
began=$SECONDS
if ! interruptible unshare --mount --pid --fork --kill-child \
  debootstrap --variant=minbase --include=git,make,ca-certificates "$codename" "$bare" "$mirror" >"$bare.log" 2>&1; then
  tail -n 5 "$bare.log" >&2
  rm -f "$bare.log"
  no_bare_root "debootstrap fails"
fi
rm -f "$bare.log"

# Copies files and folders to the same place in the root.
copy() {
  local path
  for path; do
    [ -e "$path" ] || continue
    mkdir -p "$bare$(dirname "$path")"
    # A link in the root that leads out of it is replaced, not followed.
    cp -rL --remove-destination "$path" "$bare$(dirname "$path")/"
  done
}

rm -f "$bare/etc/apt/sources.list"
copy /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/keyrings /etc/apt/trusted.gpg.d /usr/share/keyrings
mapfile -t settings < <(grep -lsE '^[[:space:]]*Acquire' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true)
copy "${settings[@]}" /etc/resolv.conf /etc/hosts /etc/ssl/certs /etc/pip.conf /etc/npmrc /etc/xdg/pip
# Certificates and folders of wheels that environment variables name.
for path in ${SSL_CERT_FILE:-} ${PIP_CERT:-} ${REQUESTS_CA_BUNDLE:-} ${CURL_CA_BUNDLE:-} ${NODE_EXTRA_CA_CERTS:-} ${PIP_FIND_LINKS:-}; do
  [[ $path != /* || -e $bare$path ]] || copy "$path"
done
cargo_home=${CARGO_HOME:-$HOME/.cargo}
homes=("$bare/root")
if [ "$as" = user ]; then
  chroot "$bare" /usr/sbin/useradd --create-home --shell /bin/bash newcomer
  homes+=("$bare/home/newcomer")
fi
for home in "${homes[@]}"; do
  mkdir -p "$home/.cargo" "$home/.config"
  for file in "$cargo_home"/config "$cargo_home"/config.toml; do [ ! -e "$file" ] || cp -L "$file" "$home/.cargo/"; done
  for path in .npmrc .pip .config/pip; do [ ! -e "$HOME/$path" ] || cp -rL "$HOME/$path" "$home/$path"; done
  mkdir "$home/my projects"
done
home=${homes[-1]}
git clone --quiet "$root" "$home/my projects/redis-rl"
[ "$as" = root ] || chroot "$bare" chown -R newcomer:newcomer /home/newcomer
mkdir -p "$bare/opt/rust"
passed=()
while IFS= read -r -d '' variable; do
  case ${variable%%=*} in
    CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTR* | CARGO_SOURCE_* | PIP_* | NPM_CONFIG_* | npm_config_registry | NODE_EXTRA_CA_CERTS) ;;
    *_proxy | *_PROXY | SSL_CERT_* | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | GIT_SSL_*) ;;
    # Somebody who tries the README's commands does not run them in CI.
    CI) [ "$as" = root ] || continue ;;
    *) continue ;;
  esac
  passed+=("$variable")
done < <(env -0)
say "The bare root is ready after $((SECONDS - began)) seconds: $(du -sm "$bare" | cut -f 1) MB"

# Runs a shell command in the clone, as root or as the user.
inside() {
  local user=$1 line=$2 home=/root
  [ "$user" = root ] || home=/home/$user
  # shellcheck disable=SC2016 # The inner shells fill these in.
  interruptible unshare --mount --pid --fork --kill-child bash -euc '
    bare=$1 rust=$2 user=$3
    shift 3
    mount -t proc proc "$bare/proc"
    mount --rbind /dev "$bare/dev"
    mount --rbind /sys "$bare/sys"
    mount --bind -o ro "$rust" "$bare/opt/rust"
    exec chroot --userspec="$user:$user" "$bare" /usr/bin/env -i "$@"
  ' _ "$bare" "$(rustc --print sysroot)" "$user" \
    "${passed[@]}" HOME="$home" USER="$user" TERM=dumb LANG=C.UTF-8 \
    PATH="$home/.cargo/bin:/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    bash -euo pipefail -c "cd '${homes[-1]#"$bare"}/my projects/redis-rl' && $line" </dev/null
}

user=root
if [ "$as" = user ]; then
  user=newcomer
  say "" "== make run, as a user without sudo and without the packages"
  if inside $user 'make run' >"$bare/out" 2>&1; then die "make run succeeded without its packages."; fi
  cat "$bare/out"
  ! grep -q 'sudo' "$bare/out" || die "The message mentions sudo, which is not installed."
  mapfile -t lines < <(grep 'apt-get ' "$bare/out")
  [ ${#lines[@]} = 1 ] || die "There must be exactly one line for root."
  say "" "== root runs: ${lines[0]}"
  began=$SECONDS
  inside root "${lines[0]}" >"$bare/out" 2>&1 || { tail -n 5 "$bare/out"; die "The line for root fails."; }
  say "Done in $((SECONDS - began)) seconds"
fi

failed=
results=()
for what; do
  case $what in
    run) title="make run" line="scripts/try-run.sh" ;;
    test) title="make test" line="make test" ;;
    *) title=$what line=$what ;;
  esac
  printf '\n%s\n' "== $title, as $user in a bare root"
  began=$SECONDS
  verdict=passes
  inside $user "$line" || { verdict=FAILS; failed=yes; }
  results+=("$title, as $user in a bare root: $verdict after $((SECONDS - began)) seconds")
done
printf '\n'
printf '%s\n' "${results[@]}"
[ -z "$failed" ]
