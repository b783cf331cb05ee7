#!/usr/bin/env bash
# Runs the tests with AddressSanitizer and debug assertions in the module. The installed server itself is not instrumented. Leaks
# are not reported in servers, because the server has some of its own; tests/server/leaks.rs finds those of the module.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all asan
runtime=$(asan_runtime)
host=$(rustc -vV | sed -n 's/^host: //p')
sanitized=$root/target/sanitize
export RUSTC_BOOTSTRAP=1
say "Building the module with AddressSanitizer, and running all tests: about 10 minutes"
RUSTFLAGS=-Zsanitizer=address cargo build --target "$host" --target-dir "$sanitized"
# First the tests of the pure parts, among them the codec. These do report leaks. Tests that make millions of equal calls, or fill a key
# with all the ids that it can remember, are left out: they take an hour here.
RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 PROPTEST_CASES=200 \
  cargo test --quiet --target "$host" --target-dir "$sanitized" --lib --test core -- --skip polled_for_a_year --skip a_million_a_second --skip one_id_more_than_a_key_remembers

rm -f "$sanitized"/report.*
cat >"$sanitized/redis-server" <<START
#!/bin/sh
LD_PRELOAD='$runtime'\${LD_PRELOAD:+:\$LD_PRELOAD} ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0:log_path='$sanitized/report'" exec '$server' "\$@"
START
chmod +x "$sanitized/redis-server"
# AddressSanitizer needs memory and time of its own: the tests that measure these are left out, and so are those of the documents, one
# that starts a server of another product, which does not load the runtime, and two that give keys many thousands of ids: here each
# write checks all of them.
skipped=(--skip leaks:: --skip outgoing:: --skip readme:: --skip a_call_takes_no_memory)
skipped+=(--skip limiters_are_the_same_on_another_server --skip ids_take_a --skip a_charge_that_is_repeated_after_a_crash)
status=0
REDIS_RL_MODULE=$sanitized/$host/debug/libredis_rl.so REDIS_RL_SERVER=$sanitized/redis-server \
  cargo test --test server -- "${skipped[@]}" 2>&1 | grep -E '^test |^test result|panicked' || status=1
if compgen -G "$sanitized/report.*" >/dev/null; then
  cat "$sanitized"/report.*
  die "AddressSanitizer found errors."
fi
[ $status = 0 ]
say "AddressSanitizer found nothing"
