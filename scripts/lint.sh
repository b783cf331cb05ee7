#!/usr/bin/env bash
# Checks format and lints: of the Rust code, and of the scripts where shellcheck is installed (in CI, it is installed).
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [ -n "${CI:-}" ]; then need_all shellcheck; else need_all; fi
if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
  type -P rustup >/dev/null || die "This Rust has no rustfmt or no clippy: install both, or take Rust from https://rustup.rs."
  say "Installing rustfmt and clippy (a few seconds)"
  rustup --quiet component add rustfmt clippy
fi

cargo fmt --check
# Those of the benchmarks that run only when they are named are not among all targets.
benches=()
for bench in benches/*; do benches+=(--bench "$(basename "$bench" .rs)"); done
cargo clippy --all-targets "${benches[@]}" -- -D warnings
if type -P shellcheck >/dev/null; then shellcheck --external-sources scripts/*.sh .ci/run; fi
