#!/usr/bin/env bash
# Checks the format and the lints of the Rust code. Checks the scripts, too, if shellcheck is installed; in CI it always is.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ -n "${CI:-}" ]; then need_all shellcheck; else need_all; fi
if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
  type -P rustup >/dev/null || die "This Rust has no rustfmt or no clippy: install both, or take Rust from https://rustup.rs."
  say "Installing rustfmt and clippy (a few seconds)"
  rustup --quiet component add rustfmt clippy
fi

cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
cargo test --quiet --test structure
if type -P shellcheck >/dev/null; then shellcheck --external-sources scripts/*.sh packaging/debian/* packaging/server/watch.sh .ci/run; fi
