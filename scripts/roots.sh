#!/usr/bin/env bash
# Bare roots: folders with a fresh system of this Debian or Ubuntu release (debootstrap's smallest variant), in which a script
# runs commands. A script sources common.sh and then this file.
#
# It needs root, and installs debootstrap. A bare root uses this machine's package mirror, proxies, certificates, Rust, and its
# settings of cargo, pip and npm. debootstrap and each command run in namespaces of their own for processes and mounts, so that no
# process and no mount is left when they end. All that is made is in the folder `roots`, which is removed when the script ends,
# also by a signal.

# Ends the script with 3: this machine can't have a bare root.
no_bare_root() {
  printf '%s\n' "No bare root can be made here: $1." >&2
  exit 3
}

# Checks that this machine can have one, and makes the folder for them.
prepare_roots() {
  [ "$(id -u)" = 0 ] || no_bare_root "only root can"
  type -P apt-get >/dev/null || no_bare_root "this is neither Debian nor Ubuntu"
  type -P cargo >/dev/null || no_bare_root "root has no Rust in its PATH"
  [ "$(rustc --print sysroot)" != /usr ] || no_bare_root "the Rust of a distribution can't be lent to it, only one of rustup"
  unshare --mount --pid --fork --kill-child sh -c 'mount -t tmpfs none /mnt && mount -t proc proc /mnt' 2>/dev/null ||
    no_bare_root "this machine does not let root mount anything"
  (need debootstrap) || no_bare_root "debootstrap can't be installed"
  codename=$(sed -nE 's/^VERSION_CODENAME=//p' /etc/os-release)
  [ -n "$(mirrors)" ] || apt-get update -qq || true
  mirror=$(mirrors | head -n 1)
  [ -n "$mirror" ] || no_bare_root "apt knows no mirror of $codename"

  roots=$(mktemp -d "${TMPDIR:-/tmp}/bare.XXXXXX")
  # Users other than root must be able to enter it.
  chmod 755 "$roots"
  step=
  trap remove_roots EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  # The variables of this shell that commands in a root have, too.
  passed=()
  local variable
  while IFS= read -r -d '' variable; do
    case ${variable%%=*} in
      CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTR* | CARGO_SOURCE_* | PIP_* | NPM_CONFIG_* | npm_config_registry | NODE_EXTRA_CA_CERTS) ;;
      *_proxy | *_PROXY | SSL_CERT_* | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE | GIT_SSL_*) ;;
      *) continue ;;
    esac
    passed+=("$variable")
  done < <(env -0)
}

# shellcheck disable=SC2016 # apt fills in $(REPO_URI).
mirrors() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename"; }

end_step() {
  # Killing `unshare` kills the first process of the step's namespace, and with it all other processes there.
  [ -z "$step" ] || { kill -KILL "$step" 2>/dev/null && wait "$step" 2>/dev/null; } || true
  step=
}

remove_roots() {
  end_step
  rm -rf --one-file-system "$roots"
}

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

# make_root NAME PACKAGES: makes the root $roots/NAME with these packages, separated by commas, in addition to the smallest system.
make_root() {
  local bare=$roots/$1 settings path
  mkdir "$bare"
  if ! interruptible unshare --mount --pid --fork --kill-child \
    debootstrap --variant=minbase --include="$2" "$codename" "$bare" "$mirror" >"$roots/log" 2>&1; then
    tail -n 5 "$roots/log" >&2
    no_bare_root "debootstrap fails"
  fi
  rm -f "$bare/etc/apt/sources.list"
  lend "$bare" /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/keyrings /etc/apt/trusted.gpg.d /usr/share/keyrings
  mapfile -t settings < <(grep -lsE '^[[:space:]]*Acquire' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true)
  lend "$bare" "${settings[@]}" /etc/resolv.conf /etc/hosts /etc/ssl/certs /etc/pip.conf /etc/npmrc /etc/xdg/pip
  # Certificates and folders of wheels that environment variables name.
  for path in ${SSL_CERT_FILE:-} ${PIP_CERT:-} ${REQUESTS_CA_BUNDLE:-} ${CURL_CA_BUNDLE:-} ${NODE_EXTRA_CA_CERTS:-} ${PIP_FIND_LINKS:-}; do
    [[ $path != /* || -e $bare$path ]] || lend "$bare" "$path"
  done
  lend_settings "$bare/root"
  mkdir -p "$bare/opt/rust"
}

# Copies files and folders to the same place in the root.
lend() {
  local bare=$1 path
  shift
  for path; do
    [ -e "$path" ] || continue
    mkdir -p "$bare$(dirname "$path")"
    # A link in the root that leads out of it is replaced, not followed.
    cp -rL --remove-destination "$path" "$bare$(dirname "$path")/"
  done
}

# Copies the settings of cargo, pip and npm into a home folder.
lend_settings() {
  local home=$1 file path cargo_home=${CARGO_HOME:-$HOME/.cargo}
  mkdir -p "$home/.cargo" "$home/.config"
  for file in "$cargo_home"/config "$cargo_home"/config.toml; do [ ! -e "$file" ] || cp -L "$file" "$home/.cargo/"; done
  for path in .npmrc .pip .config/pip; do [ ! -e "$HOME/$path" ] || cp -rL "$HOME/$path" "$home/$path"; done
}

# in_root NAME USER [VARIABLE=VALUE]... LINE: runs a line for a shell in the root $roots/NAME, with the machine's Rust in /opt/rust
# and in the PATH. With OWN_NETWORK=yes, the commands have a network of their own, with a loopback interface and nothing else.
in_root() {
  local bare=$roots/$1 user=$2 line=${*: -1} home=/root variables=("${@:3:$#-3}") network=()
  [ "$user" = root ] || home=/home/$user
  [ -z "${OWN_NETWORK:-}" ] || network=(--net)
  # With pivot_root instead of chroot, the root is the root of its mount namespace, so that commands in it can make mount namespaces
  # of their own.
  # shellcheck disable=SC2016 # The inner shells fill these in.
  interruptible unshare --mount --pid --fork --kill-child "${network[@]}" bash -euc '
    bare=$1 rust=$2 user=$3 network=$4
    shift 4
    [ -z "$network" ] || ip link set lo up
    mount --bind "$bare" "$bare"
    mount -t proc proc "$bare/proc"
    mount --rbind /dev "$bare/dev"
    mount --rbind /sys "$bare/sys"
    mount --bind -o ro "$rust" "$bare/opt/rust"
    cd "$bare"
    pivot_root . mnt
    umount -l /mnt
    exec chroot --userspec="$user:$user" / /usr/bin/env -i "$@"
  ' _ "$bare" "$(rustc --print sysroot)" "$user" "${network[*]}" \
    "${passed[@]}" HOME="$home" USER="$user" TERM=dumb LANG=C.UTF-8 \
    PATH="$home/.cargo/bin:/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "${variables[@]}" \
    bash -euo pipefail -c "$line" </dev/null
}
