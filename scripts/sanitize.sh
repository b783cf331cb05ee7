#!/usr/bin/env bash
# Runs the tests with AddressSanitizer and debug assertions in the module, in the installed server as it is. It does not report
# what the server itself leaks; tests/leaks.rs shows what the module leaks.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all asan
runtime=$(asan_runtime)
host=$(rustc -vV | sed -n 's/^host: //p')
sanitized=$root/target/sanitize
export RUSTC_BOOTSTRAP=1
say "Building the module with AddressSanitizer, and running all tests: about 10 minutes"
RUSTFLAGS=-Zsanitizer=address cargo build --target "$host" --target-dir "$sanitized"
# The pure parts by themselves, the codec among them.
mapfile -t pure < <(pure_tests)
RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 PROPTEST_CASES=600 \
  cargo test --quiet --target "$host" --target-dir "$sanitized" --lib "${pure[@]/#/--test=}"

rm -f "$sanitized"/report.*
cat >"$sanitized/redis-server" <<START
#!/bin/sh
LD_PRELOAD='$runtime'\${LD_PRELOAD:+:\$LD_PRELOAD} ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0:log_path='$sanitized/report'" exec '$server' "\$@"
START
chmod +x "$sanitized/redis-server"
# AddressSanitizer takes memory and time of its own: not the tests that measure these.
mapfile -t tests < <(integration_tests | grep -vxE 'leaks|outgoing|readme')
status=0
REDIS_RL_MODULE=$sanitized/$host/debug/libredis_rl.so REDIS_RL_SERVER=$sanitized/redis-server \
  cargo test --no-fail-fast "${tests[@]/#/--test=}" -- --skip a_call_takes_no_memory 2>&1 | grep -E '^test |^test result|panicked' || status=1
if compgen -G "$sanitized/report.*" >/dev/null; then
  cat "$sanitized"/report.*
  die "AddressSanitizer found errors."
fi
[ $status = 0 ]
say "AddressSanitizer found nothing"
