#!/usr/bin/env bash
# Compares the behaviour of two builds of the module: the one at hand, and the one of an older commit.
# Usage: differential.sh BASE [ARGUMENT]... where BASE is a commit, and the arguments are those of tools/src/bin/differential.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ -n "${1:-}" ] || die "Name the commit to compare with: make differential BASE=<commit>"
commit=$(git rev-parse --verify --quiet "$1^{commit}") || die "BASE=$1: there is no such commit."
shift
# shellcheck disable=SC2119 # need_all takes the names of further things to install; this script needs none.
need_all
build

# The base is built once for each commit. Its sources are unpacked for that, and its libraries are compiled once for all bases.
folder=$root/target/differential
base=$folder/$commit.so
if [ ! -e "$base" ]; then
  say "Building the module of $commit; the first time takes about a minute on two cores."
  rm -rf "$folder/source"
  mkdir -p "$folder/source"
  git archive "$commit" | tar -x -C "$folder/source"
  # A package in a folder of a workspace must be a member of it, or a workspace of its own.
  grep -q '^\[workspace\]' "$folder/source/Cargo.toml" || printf '\n[workspace]\n' >>"$folder/source/Cargo.toml"
  # The times of the files are those of the commit, and may be older than the last build of another one.
  find "$folder/source" -name '*.rs' -exec touch {} +
  (cd "$folder/source" && CARGO_TARGET_DIR=$folder/build cargo build --release --lib)
  mv "$folder/build/release/libredis_rl.so" "$base"
  rm -rf "$folder/source"
fi

cargo build --quiet --package redis-rl-tools --bin differential --profile tools
exec target/tools/differential --base "$base" --new "$module" --server "$server" "$@"
