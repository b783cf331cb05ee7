#!/usr/bin/env bash
# Runs the tests of Redis itself (its units and its integration tests) on a server that has loaded the module. SOURCE is a folder
# with the source of Redis, whose version must be that of the server; nothing in it is changed. ONLY is a unit, such as unit/expire.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_all tcl redis-benchmark
[ -x "${SOURCE:-}/runtest" ] || die "Name the source of Redis: make redis-suite SOURCE=/path/to/redis"
SOURCE=$(realpath "$SOURCE")
source_version="Redis $(sed -nE 's/^#define REDIS_VERSION "(.*)"/\1/p' "$SOURCE/src/version.h")"
[ "$(version_of "$server")" = "$source_version" ] ||
  die "$SOURCE is $source_version, and $server is $(version_of "$server"). Check out the tag of the server, or name another with SERVER="
build

# The suite starts the programs in src, and writes to the folder in which it runs.
suite=$root/target/redis-suite
rm -rf "$suite"
mkdir -p "$suite/src"
cp -r "$SOURCE"/{tests,utils,runtest,redis.conf} "$suite"
ln -s "$server" "$suite/src/redis-server"
for program in redis-cli redis-benchmark redis-check-aof redis-check-rdb; do
  path=$(type -P "$program") || die "There is no $program."
  ln -s "$path" "$suite/src/$program"
done
cd "$suite"
arguments=(--clients "${CLIENTS:-$(nproc)}" --config loadmodule "$module")
[ -z "${ONLY:-}" ] || arguments+=(--single "$ONLY")
./runtest "${arguments[@]}"
