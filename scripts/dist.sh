#!/usr/bin/env bash
# Makes a package for distribution: dist.sh tarball|deb
#   tarball   target/dist/redis-rl-<version>-linux-<arch>.tar.gz, with the library and what a person needs to install it, and a file with
#             its checksum beside it. The same library gives the same file, byte for byte.
#   deb       the Debian package target/dist/redis-rl_<version>-<revision>_<arch>.deb, with cargo-deb. REVISION is the revision of the
#             package, 1 by default; DEB_VERSION replaces version and revision.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "${1:-}" in
  tarball) things=() ;;
  deb) things=(dpkg-shlibdeps) ;;
  *) die "dist.sh: tarball or deb." ;;
esac
need_rust
need compiler libclang "${things[@]}"
build

if [ "$1" = tarball ]; then
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
  exit
fi

cargo_deb=3.8.0
tools=$root/target/tools
if [ "$("$tools/bin/cargo-deb" --version 2>/dev/null)" != "cargo-deb $cargo_deb" ]; then
  say "Building cargo-deb $cargo_deb (about a minute)"
  CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --force --debug --root "$tools" --version $cargo_deb --no-default-features cargo-deb
  rm -rf "$tools/build"
fi

version=${DEB_VERSION:-$(version)-${REVISION:-1}}
mkdir -p target/debian target/dist
# Debian's form of a changelog, which names the version of the package. The changes themselves are in CHANGELOG.md.
cat >target/debian/changelog <<CHANGES
redis-rl ($version) unstable; urgency=medium

  * The changes of this version are in /usr/share/doc/redis-rl/changelog.gz.

 -- the redis-rl authors <redis-rl@localhost>  $(LC_ALL=C date -u -R -d "@$(source_date)")
CHANGES
gzip --no-name --best --stdout CHANGELOG.md >target/debian/changelog.gz
deb=target/dist/redis-rl_${version}_$(dpkg --print-architecture).deb
# The library keeps the names of its functions, as that of the tarball does: the server's crash reports show them.
SOURCE_DATE_EPOCH=$(source_date) "$tools/bin/cargo-deb" --no-build --no-strip --deb-version "$version" --output "$root/$deb" >/dev/null
say "$deb: $(dpkg-deb --field "$deb" Depends | sed 's/^/depends on /')"
