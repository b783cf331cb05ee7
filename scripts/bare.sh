#!/usr/bin/env bash
# Runs the README's two commands on a system that has only git, make and Rust: in a bare root of this Debian or Ubuntu release
# (debootstrap's smallest variant), in a fresh clone of the last commit, in a path with a space.
#
# Usage: bare.sh [--as root|user] [run|test|COMMAND]... [--then-root STEP...]
#   run           `make run`, and the lines that it suggests
#   test          `make test`
#   COMMAND       any other shell command, run in the clone
#   --as user     as a user without root's rights and without sudo: first `make run` must print a line for root, and root runs
#                 exactly this line; then that user runs the steps
#   --then-root   root runs the steps after this word, in the same root and the same clone, with what the user has built
# It exits with 0 if all steps pass, with 3 if no bare root can be made here, and with 1 otherwise.
#
# It needs root. scripts/roots.sh describes what the bare root uses of this machine. This script removes it when it ends.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/roots.sh
. "$root/scripts/roots.sh"

as=root
if [ "${1:-}" = --as ]; then
  as=$2
  shift 2
fi
[ "$as" = root ] || [ "$as" = user ] || die "bare.sh: --as root or --as user, not $as."
steps=()
while [ $# -gt 0 ] && [ "$1" != --then-root ]; do
  steps+=("$1")
  shift
done
root_steps=("${@:2}")
[ ${#steps[@]} -gt 0 ] || steps=(run test)
[ ${#root_steps[@]} = 0 ] || [ "$as" = user ] || die "bare.sh: --then-root comes after --as user."

prepare_roots
say "Making a bare root (about half a minute)"
began=$SECONDS
make_root system git,make,ca-certificates
bare=$roots/system
home=/root
if [ "$as" = user ]; then
  chroot "$bare" /usr/sbin/useradd --create-home --shell /bin/bash newcomer
  home=/home/newcomer
  lend_settings "$bare$home"
fi
mkdir "$bare$home/my projects"
git clone --quiet "$root" "$bare$home/my projects/redis-rl"
[ "$as" = root ] || chroot "$bare" chown -R newcomer:newcomer /home/newcomer
say "The bare root is ready after $((SECONDS - began)) seconds: $(du -sm "$bare" | cut -f 1) MB"

# Runs a shell command in the clone, as root or as the user. Root uses the crates that the user has downloaded. Only root's commands
# run as in CI: somebody who tries the README's commands does not.
inside() {
  local settings=("CARGO_HOME=$home/.cargo")
  [ "$1" != root ] || [ -z "${CI:-}" ] || settings+=("CI=$CI")
  in_root system "$1" "${settings[@]}" "cd '$home/my projects/redis-rl' && $2"
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
# take_step USER STEP
take_step() {
  local title=$2 line=$2 verdict=passes
  case $2 in
    run) title="make run" line="scripts/try-run.sh" ;;
    test) title="make test" line="make test" ;;
  esac
  title="$title, as $1 in a bare root"
  say "" "== $title"
  began=$SECONDS
  inside "$1" "$line" || { verdict=FAILS; failed=yes; }
  results+=("$title: $verdict after $((SECONDS - began)) seconds")
}
for what in "${steps[@]}"; do take_step $user "$what"; done
if [ -z "$failed" ] && [ ${#root_steps[@]} -gt 0 ]; then
  # The clone and the crates become root's. They stay where they are, so that root does not build the same again.
  chroot "$bare" chown -R root:root "$home"
  for what in "${root_steps[@]}"; do take_step root "$what"; done
fi
say "" "${results[@]}" "All of it: $SECONDS seconds"
[ -z "$failed" ]
