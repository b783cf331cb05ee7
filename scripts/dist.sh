#!/usr/bin/env bash
# Makes target/dist/redis-rl-<version>-linux-<arch>.tar.gz, with the library and what a person needs to install it, and a file with
# its checksum beside it. The same library gives the same file, byte for byte.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need compiler libclang
build

name=redis-rl-$(version)-linux-$machine
glibc=$(needed_glibc "$module")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/$name"
cp "$module" LICENSE CHANGELOG.md "$work/$name/"
sed "s/@VERSION@/$(version)/; s/@ARCH@/$machine/; s/@GLIBC@/$glibc/" packaging/INSTALL.txt >"$work/$name/INSTALL.txt"
(cd "$work/$name" && LC_ALL=C sha256sum ./* | sed 's| \./| |' >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
chmod 755 "$work/$name/libredis_rl.so"
mkdir -p target/dist
tar --create --directory "$work" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
  --mtime="@$(source_date)" "$name" | gzip --no-name --best >"$work/$name.tar.gz"
mv -f "$work/$name.tar.gz" target/dist/
(cd target/dist && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
say "target/dist/$name.tar.gz: needs glibc $glibc or newer"
