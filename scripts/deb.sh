#!/usr/bin/env bash
# Makes the Debian package target/dist/redis-rl_<version>-<revision>_<arch>.deb with cargo-deb. REVISION is the revision of the
# package, 1 by default; DEB_VERSION replaces version and revision.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need_rust
need compiler libclang dpkg-shlibdeps
build

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
