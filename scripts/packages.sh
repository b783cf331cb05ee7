#!/usr/bin/env bash
# Tests what docs/install.md says: runs its commands, read from the document itself, in bare roots of this Debian release. One root
# runs systemd and Debian's redis-server, in namespaces of its own: there the Debian package, the tarball and `make install` are
# installed, upgraded and removed. Docker and Kubernetes do not run here: the steps of the Dockerfile run in two other roots, and
# what compose.yaml and the manifest of Kubernetes start, in the second of these.
#
# It needs root, and exits with 3 if no bare root can be made here.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=scripts/roots.sh
. "$root/scripts/roots.sh"
prepare_roots
need_rust
need compiler libclang dpkg-shlibdeps iproute2 venv
codes=$root/target/packages
results=()

# A title for what follows, with the time that the last part took.
part=
part() {
  [ -z "$part" ] || results+=("$part: passes after $((SECONDS - began)) seconds")
  part=$1
  began=$SECONDS
  [ -z "$part" ] || say "" "== $part"
}
# check WHAT COMMAND: the command must succeed.
check() {
  "${@:2}" || die "docs/install.md is wrong: $1."
  say "$1"
}
not() { ! "$@"; }
read_file() { "$codes/python/bin/python" scripts/packages.py "$@"; }

part "make dist, make deb and make wheel"
"$codes/python/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$codes/python"
"$codes/python/bin/python" -m pip install --quiet --disable-pip-version-check -r packaging/requirements.txt
"$codes/python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps docker-compose==1.29.2
rm -rf target/dist
scripts/dist.sh tarball
scripts/wheel.sh
mv target/dist "$roots/dist"
scripts/dist.sh tarball >/dev/null
scripts/wheel.sh >/dev/null
check "A second tarball, wheel and npm package are the same, byte for byte" diff -r target/dist "$roots/dist"
# Two packages of the same library: only the versions differ. So what runs is told apart by the file that the server has mapped.
scripts/dist.sh deb
newer=$(version)-2
DEB_VERSION=$newer scripts/dist.sh deb
arch=$(dpkg --print-architecture)
mkdir "$roots/deb" "$roots/tarball" "$roots/npm"
dpkg-deb -x "target/dist/redis-rl_$(version)-1_$arch.deb" "$roots/deb"
tar -xzf "target/dist/redis-rl-$(version)-linux-$machine.tar.gz" -C "$roots/tarball" --strip-components=1
check "The package and the tarball have the same library" \
  cmp "$roots/deb/usr/lib/redis/modules/libredis_rl.so" "$roots/tarball/libredis_rl.so"
wheel=$(cd target/dist && echo redis_rl_server-*.whl)
python3 -m zipfile -e "target/dist/$wheel" "$roots/wheel"
tar -xzf "target/dist/redis-rl-server-$(version)-linux-$machine.tgz" -C "$roots/npm" --strip-components=1
for folder in wheel/redis_rl_server npm; do
  check "So has $folder" cmp "$roots/tarball/libredis_rl.so" "$roots/$folder/libredis_rl.so"
  check "It has the version of Cargo.toml" grep -qF "\"version\": \"$(version)\"" "$roots/$folder/build.json"
done
for file in "$roots"/{npm,wheel/redis_rl_server-*.dist-info/licenses}/LICENSE; do
  check "Both licences are beside each other" cmp LICENSE "$file"
  check "The second, too" cmp packaging/server/LICENSE.valkey "$file.valkey"
done
check "It has the names of its functions" grep -q ' F \.text.*redis_rl' <(objdump --syms "$roots/tarball/libredis_rl.so")
check "The files of the tarball are those that INSTALL.txt knows" \
  test "$(cd "$roots/tarball" && echo ./*)" = "./CHANGELOG.md ./INSTALL.txt ./LICENSE ./SHA256SUMS ./libredis_rl.so"

part "Making the roots"
make_root debian ca-certificates,make,systemd,systemd-sysv,dbus
in_root debian root DEBIAN_FRONTEND=noninteractive 'apt-get update -qq'
cp -a "$roots/debian" "$roots/build"
cp -a "$roots/debian" "$roots/trial"
in_root debian root DEBIAN_FRONTEND=noninteractive 'apt-get install -y -qq --no-install-recommends redis-server >/dev/null'
cp -a "$roots/debian" "$roots/image"

# --- The root with systemd -------------------------------------------------------------------------------------------------

# All processes of that root are in this cgroup. systemd needs a cgroup of its own.
group=redis-rl-packages-$$
system=
stop_system() {
  [ -n "$system" ] || return 0
  kill -KILL "$system" 2>/dev/null || true
  wait "$system" 2>/dev/null || true
  system=
  # Its processes end at once, but the kernel counts them for a moment longer.
  # shellcheck disable=SC2016 # The inner shell fills these in.
  unshare --mount bash -uc '
    mount -t cgroup2 none "$1/cgroup" || exit
    for _ in $(seq 100); do
      [ -d "$1/cgroup/$2" ] || exit 0
      find "$1/cgroup/$2" -depth -type d -exec rmdir {} + 2>/dev/null
      sleep 0.1
    done
    echo "The cgroup $2 is left." >&2; exit 1' _ "$roots" "$group" || true
}
trap 'end_step; stop_system; remove_roots' EXIT

# Starts systemd in the root, with a network of its own that has only the loopback interface.
start_system() {
  mkdir -p "$roots/cgroup"
  # shellcheck disable=SC2016 # The inner shells fill these in.
  unshare --mount bash -euc '
    mount -t cgroup2 none "$1/cgroup"
    mkdir "$1/cgroup/$2"
    echo $$ >"$1/cgroup/$2/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash -euc "$3" _ "$1/debian"' _ "$roots" "$group" '
    bare=$1
    mount --bind "$bare" "$bare"
    mount -t proc proc "$bare/proc"
    mount -t sysfs -o ro sysfs "$bare/sys"
    mount -t tmpfs tmpfs "$bare/sys/fs/cgroup"
    mount -t cgroup2 cgroup2 "$bare/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$bare/run"
    mount -t tmpfs -o mode=1777 tmpfs "$bare/tmp"
    mount --rbind /dev "$bare/dev"
    cd "$bare"
    pivot_root . mnt
    umount -l /mnt
    exec env -i container=other /lib/systemd/systemd --unit=multi-user.target' >"$roots/system.log" 2>&1 </dev/null &
  system=$!
  init=
  local state=
  for _ in $(seq 300); do
    kill -0 "$system" 2>/dev/null || break
    # Until systemd runs, the child is another program, also one outside of the root.
    read -r init _ <"/proc/$system/task/$system/children" || true
    [ "$(cat "/proc/${init:-none}/comm" 2>/dev/null)" = systemd ] || init=
    state=$([ -z "$init" ] || nsenter --target "$init" --all systemctl is-active redis-server 2>/dev/null) || true
    [ "$state" != active ] || return 0
    sleep 0.2
  done
  cat "$roots/system.log" >&2
  die "systemd and redis-server do not start in a bare root: ${state:-nothing runs}."
}

# Runs lines for a shell in the running system, in /root/work.
inside() {
  interruptible nsenter --target "$init" --all env -i HOME=/root USER=root TERM=dumb LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -euo pipefail -c "cd /root/work && $1" </dev/null
}
quiet() { "$@" >"$roots/out" 2>&1 || { cat "$roots/out" >&2; return 1; }; }

# The Nth bash block below a heading of docs/install.md. It names the files of amd64.
block() { read_file block docs/install.md "$1" "${2:-1}" | sed "s/_amd64\.deb/_$arch.deb/; s/-linux-x86_64/-linux-$machine/"; }

# doc HEADING [N]: runs it, in the folder `work` of that root if this variable is set.
ran=()
work=
doc() {
  local lines enter=
  ran+=("$1, ${2:-1}")
  lines=$(block "$1" "${2:-1}")
  say "-- $1" "$lines"
  [ -z "$work" ] || enter="cd '$work' && "
  quiet inside "$enter$lines" || die "docs/install.md: these lines fail."
}
# shellcheck disable=SC2016 # The inner shell fills this in.
answers() { [ "$(inside 'redis-cli RL.GCRA check:$(date +%N) 10 60' | xargs)" = "1 10 9 0 6000" ]; }
knows_nothing() { inside 'redis-cli RL.GCRA key 10 60' | grep -q "unknown command" && [ "$(inside 'redis-cli PING')" = PONG ]; }
# The process of the server, and the file of the library that it has mapped: the number of its inode.
pid() { inside 'systemctl show --property MainPID --value redis-server'; }
mapped() { inside "awk '/libredis_rl/ { print \$5 }' /proc/$(pid)/maps | sort -u"; }
installed() { inside "stat -c %i ${1:-/usr/lib/redis/modules/libredis_rl.so}"; }
runs_installed() { [ "$(mapped)" = "$(installed "$@")" ]; }
# All files of the root, except those that programs write while they run: logs, caches, the data of the server, and apt's records.
files() {
  inside 'find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp -o -path /root/work -o -path /var/log \
    -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/redis -o -path /var/lib/systemd -o -path /home \) \
    -prune -o -print | sort' >"$1"
}
same_files() {
  files "$roots/after"
  diff "$roots/before" "$roots/after"
}
give_package() { cp "target/dist/redis-rl_$1_$arch.deb" "$roots/debian/root/work/"; }
package=redis-rl_$(version)-1_$arch.deb

part "The Debian package on Debian's redis-server, under systemd"
mkdir -p "$roots/debian/root/work" "$roots/debian/etc/systemd/system.conf.d"
# These tests restart the server more often than systemd allows by default.
printf '[Manager]\nDefaultStartLimitIntervalSec=0\n' >"$roots/debian/etc/systemd/system.conf.d/no-limit.conf"
start_system
say "$(inside 'redis-server --version'), $(inside 'systemctl --version' | head -n 1), unit with $(inside 'systemctl show --property NoExecPaths redis-server')"
files "$roots/before"
inside 'cp -a /etc/redis /root/work/etc-redis'
give_package "$(version)-1"
check "The server does not know the module yet" knows_nothing
doc "Debian package" 1
check "The library loads: $(cat "$roots/out")" grep -q "Module 'rl' loaded" "$roots/out"
check "This changes nothing of the service" knows_nothing
doc "Debian package" 2
check "RL.GCRA key 10 60 answers 1 10 9 0 6000" answers
doc "Debian package" 2
check "The same lines a second time change nothing" answers
quiet inside 'redis-cli CONFIG SET rl.top-keys 64 && redis-cli -e CONFIG REWRITE && systemctl restart redis-server'
check "After CONFIG REWRITE the server starts again, and keeps the setting" \
  test "$(inside 'redis-cli CONFIG GET rl.top-keys' | xargs)" = "rl.top-keys 64"

give_package "$newer"
old=$(pid) file=$(installed)
doc "Upgrade the package" 1
check "The newer package is installed" test "$(inside "dpkg-query --show --showformat '\${Version}' redis-rl")" = "$newer"
check "The server was not restarted" test "$(pid)" = "$old"
check "There is a new file" not test "$(installed)" = "$file"
check "The server still has the old one" test "$(mapped)" = "$file"
check "The server answers" answers
doc "Upgrade the package" 2
check "After its restart the server has the new file" runs_installed
check "The server answers" answers
check "Both packages are in the folder" test "$(inside 'ls redis-rl_*.deb | wc -l')" = 2
doc "Downgrade the package"
check "The older package is installed" test "$(inside "dpkg-query --show --showformat '\${Version}' redis-rl")" = "$(version)-1"
check "The server runs its file" runs_installed
check "The server answers" answers

restore() { quiet inside 'rm -f /etc/redis/users.acl && cp -a etc-redis/. /etc/redis/ && systemctl restart redis-server'; }
# The users that docs/operations.md recommends. They name commands of the module.
users=$(grep '^user ' docs/operations.md)
app_calls() { [ "$(inside "redis-cli --user app --pass a-long-secret --no-auth-warning $*" | head -n 1)" = "${reply:-1}" ]; }
# Removes the module as docs/install.md says. Its lines of the configuration are in FILE.
remove_package() {
  check "The user of docs/operations.md calls the module" app_calls RL.GCRA limit:1 10 60
  quiet inside 'apt-get remove -y redis-rl'
  check "A removal warns" grep -q '^redis-rl: these lines still name the module' "$roots/out"
  check "It names $1 and the numbers of the lines" grep -qE "^$1:[0-9]+" "$roots/out"
  check "It does not show passwords" not grep -q 'secret' "$roots/out"
  quiet inside "cp -a /etc/redis etc-copy && sed -i '/libredis_rl/d; /^rl\./d' /etc/redis/redis.conf"
  check "It is not enough to remove loadmodule and the settings: then the server does not start" \
    not quiet inside 'systemctl restart redis-server' 2>/dev/null
  check "Its log names the rule" inside 'tail -n 20 /var/log/redis/redis-server.log | grep -q "+rl.fixed"'
  quiet inside "systemctl stop redis-server; systemctl reset-failed redis-server; cp -a etc-copy/. /etc/redis/ && rm -r etc-copy"
  quiet inside "apt-get install -y ./$package && systemctl restart redis-server"
  doc "Remove the package" 1
  check "It lists the line loadmodule, the setting and both users: $(wc -l <"$roots/out") lines" \
    test "$(grep -cE 'loadmodule|:rl\.top-keys 64|:user (app|dashboard) ' "$roots/out")" = 4
  doc "Remove the package" 2
  check "It lists nothing any more" not quiet inside "$(block "Remove the package" 1)"
  doc "Remove the package" 3
  check "The server runs without the module" knows_nothing
  reply=PONG check "The users are left, with their other rules" app_calls PING
}
quiet inside "cat >>/etc/redis/redis.conf <<'USERS'
$users
USERS
systemctl restart redis-server"
remove_package /etc/redis/redis.conf
check "No file is left" same_files
restore
quiet inside "apt-get install -y ./$package && echo 'loadmodule /usr/lib/redis/modules/libredis_rl.so
rl.top-keys 64
aclfile /etc/redis/users.acl' >>/etc/redis/redis.conf && cat >/etc/redis/users.acl <<'USERS'
$users
USERS
chown redis: /etc/redis/users.acl && chmod 640 /etc/redis/users.acl && systemctl restart redis-server"
remove_package /etc/redis/users.acl
restore
check "No file is left" same_files

quiet inside "apt-get install -y ./$package"
doc "A line that may stay"
check "The included line loads the module" answers
quiet inside 'apt-get purge -y redis-rl && systemctl restart redis-server'
check "A removal does not warn about this line" not grep -q '^redis-rl: ' "$roots/out"
check "With this line the server also starts without the package" knows_nothing
check "No file is left" same_files
quiet inside "cp -a /etc/redis/redis.conf redis.conf && echo 'rl.top-keys 64' >>/etc/redis/redis.conf"
check "But not with a setting of the module" not quiet inside 'systemctl restart redis-server' 2>/dev/null
quiet inside "cp -a redis.conf /etc/redis/redis.conf && grep '^user ' >>/etc/redis/redis.conf <<'USERS'
$users
USERS"
check "And not with users that name its commands" not quiet inside 'systemctl restart redis-server' 2>/dev/null
quiet inside 'systemctl stop redis-server; systemctl reset-failed redis-server; cp -a redis.conf /etc/redis/redis.conf && rm redis.conf'
quiet inside "apt-get install -y ./$package && systemctl restart redis-server && redis-cli -e CONFIG REWRITE"
check "After CONFIG REWRITE a server with an included line does not start" not quiet inside 'systemctl restart redis-server' 2>/dev/null
inside 'systemctl stop redis-server && apt-get purge -y redis-rl' >/dev/null 2>&1
quiet inside 'systemctl reset-failed redis-server'
restore
check "No file is left" same_files

part "The tarball"
cp target/dist/*.tar.gz target/dist/*.sha256 "$roots/debian/root/work/"
# An older one, and its folder, are still there.
quiet inside "mkdir redis-rl-0.0.9-linux-$machine && tar -czf redis-rl-0.0.9-linux-$machine.tar.gz redis-rl-0.0.9-linux-$machine &&
  sha256sum redis-rl-0.0.9-linux-$machine.tar.gz >redis-rl-0.0.9-linux-$machine.tar.gz.sha256"
quiet inside "cp redis-rl-$(version)-linux-$machine.tar.gz good && echo x >>redis-rl-$(version)-linux-$machine.tar.gz"
check "A wrong checksum stops" not quiet inside "$(block Tarball)" 2>/dev/null
check "Nothing was unpacked and installed" inside "test ! -e redis-rl-$(version)-linux-$machine -a ! -e /usr/lib/redis"
quiet inside "mv good redis-rl-$(version)-linux-$machine.tar.gz"
doc "Tarball"
file=$(installed)
quiet inside "echo 'loadmodule /usr/lib/redis/modules/libredis_rl.so' >>/etc/redis/redis.conf && systemctl restart redis-server"
check "RL.GCRA key 10 60 answers 1 10 9 0 6000" answers
doc "Tarball"
check "The same lines a second time replace the file" not test "$(installed)" = "$file"
check "The server still has the old one, and answers" test "$(mapped)" = "$file" -a "$(answers && echo yes)" = yes
# The lines of INSTALL.txt are those of the document.
while IFS= read -r line; do
  check "INSTALL.txt has: $line" grep -qxF "$line" packaging/INSTALL.txt
done < <(block Tarball | tail -n 3)
check "INSTALL.txt has the line that lists what only the module knows" \
  grep -qxF "  $(block "Remove the package" 1) /etc/valkey" packaging/INSTALL.txt
check "README.Debian has it, too" grep -qxF "  $(block "Remove the package" 1) /etc/valkey" packaging/README.Debian
restore
quiet inside 'rm -r /usr/lib/redis'
check "No file is left" same_files

part "make install, as root, of what a user has built"
quiet inside 'useradd --create-home --shell /bin/bash builder'
mkdir "$roots/debian/home/builder/my projects"
git ls-files -z | tar -c --null --files-from=- | tar -x -C "$roots/debian/home/builder/my projects"
build
mkdir -p "$roots/debian/home/builder/my projects/target/release"
cp -p "$module" "$roots/debian/home/builder/my projects/target/release/"
quiet inside 'chown -R builder: /home/builder'
files "$roots/before"
checkout() { work='/home/builder/my projects' doc "$@"; }
check "Root has no Rust here" not inside 'type cargo'
checkout "make install"
check "No file in the user's checkout belongs to root" test -z "$(inside 'find /home/builder -user root')"
local_library=/usr/local/lib/redis/modules/libredis_rl.so
quiet inside "cp /etc/redis/redis.conf redis.conf && echo 'loadmodule $local_library' >>/etc/redis/redis.conf"
check "Without a drop-in, the service does not load a library from /usr/local" not quiet inside 'systemctl restart redis-server' 2>/dev/null
check "The log says why, as docs/install.md does" inside 'grep -q "failed to map segment from shared object" /var/log/redis/redis-server.log'
quiet inside 'systemctl stop redis-server; systemctl reset-failed redis-server; cp redis.conf /etc/redis/redis.conf'
doc "A folder of your own"
check "With the drop-in, RL.GCRA key 10 60 answers 1 10 9 0 6000" answers
quiet inside 'systemd-analyze verify --man=no redis-server.service'
file=$(installed $local_library)
checkout "make install"
check "There is a new file" not test "$(installed $local_library)" = "$file"
check "The server still has the old one, and answers" test "$(mapped)" = "$file" -a "$(answers && echo yes)" = yes
checkout "make install" 2
check "It says what to remove from the configuration" grep -q 'its commands in ACL users' "$roots/out"
doc "A folder of your own" 2
restore
check "The server runs without the module" knows_nothing
check "No file and no folder is left" same_files
quiet inside "cd '/home/builder/my projects' && make install PREFIX=/opt/new/prefix MODULEDIR=/opt/modules DESTDIR=/root/work/dest"
check "DESTDIR, PREFIX and MODULEDIR are kept" inside 'test -x dest/opt/modules/libredis_rl.so -a -e dest/opt/new/prefix/share/redis-rl/redis-rl.conf'
check "The snippet names the library without DESTDIR" inside 'grep -qx "loadmodule /opt/modules/libredis_rl.so" dest/opt/new/prefix/share/redis-rl/redis-rl.conf'
quiet inside "cd '/home/builder/my projects' && make uninstall PREFIX=/opt/new/prefix DESTDIR=/root/work/dest"
check "Nothing is left there" test -z "$(inside 'ls -A dest')"
quiet inside "touch '/home/builder/my projects/src/lib.rs'"
check "Root does not build in a user's checkout" not quiet inside "cd '/home/builder/my projects' && make install" 2>/dev/null
stop_system

# --- The Dockerfile --------------------------------------------------------------------------------------------------------

part "The steps of the Dockerfile"
declare -A arguments stages=()
stage=
folder=
docker_ARG() { arguments[${1%%=*}]=${1#*=}; }
# The roots stand for the images: the first has a lent Rust, and the last has Debian's Redis.
docker_FROM() {
  local image=$1 name
  for name in "${!arguments[@]}"; do image=${image//"\${$name}"/"${arguments[$name]}"}; done
  folder=/
  case ${image%%:*} in
    rust)
      [ "${image#*-}" = "$codename" ] || say "(The image is of ${image#*-}, and this machine of $codename.)"
      stage=build
      say "-- FROM $image: a bare root with $(rustc --version)"
      ;;
    redis)
      stage=image
      say "-- FROM $image: a bare root with $(in_root image root 'redis-server --version')"
      ;;
    *) die "Dockerfile: no root stands for the image $image." ;;
  esac
  [ -z "${3:-}" ] || stages[$3]=$stage
}
docker_WORKDIR() {
  folder=$1
  mkdir -p "$roots/$stage$folder"
}
docker_RUN() {
  say "-- RUN $1"
  quiet in_root "$stage" root DEBIAN_FRONTEND=noninteractive "cd '$folder' && $1" || die "Dockerfile: this step fails."
}
docker_COPY() {
  local from=$roots/context
  if [[ $1 = --from=* ]]; then
    from=$roots/${stages[${1#--from=}]}
    shift
  fi
  local target=$2
  [[ $target = /* ]] || target=$folder/$target
  say "-- COPY $1 $2"
  mkdir -p "$roots/$stage$(dirname "$target")"
  cp -a "$from/$1" "$roots/$stage$target"
}
docker_CMD() { default_command=("$@"); }
# What .dockerignore lets through of the files that git knows.
mapfile -t context < <(sed -n 's/^!//p' .dockerignore)
[ "$(grep -vE '^(#|!|$)' .dockerignore)" = '*' ] || die ".dockerignore: only a list of what is not ignored is tested."
mkdir "$roots/context"
git ls-files -z -- "${context[@]}" | tar -c --null --files-from=- | tar -x -C "$roots/context"
default_command=()
steps=$(read_file docker)
eval "$steps"

# starts USER CHECK... -- COMMAND...: starts the server in the image's root as its start script does, which puts the name of the
# server before options. CHECK is the image's health check: it must fail before the server listens, and pass afterwards. The server
# and the check have the variables of `environment`. With a password there, the server must refuse a client that has none.
environment=()
starts() {
  local user=$1 checks=() reply
  shift
  while [ "$1" != -- ]; do
    checks+=("$1")
    shift
  done
  shift
  reply=$(OWN_NETWORK=yes in_root image root "${environment[@]}" "
    ! ${checks[*]@Q} >/dev/null 2>&1 || { echo 'the check passes without a server'; exit 1; }
    mkdir -p /data && chown $user /data && cd /data
    setpriv --reuid=$user --regid=$user --clear-groups redis-server ${*@Q} >/tmp/server.log 2>&1 &
    for _ in \$(seq 300); do
      kill -0 \$! || break
      [ \"\$(redis-cli PING 2>/dev/null)\" != PONG ] || break
      sleep 0.1
    done
    if [ -n \"\${REDISCLI_AUTH:-}\" ]; then
      env -u REDISCLI_AUTH redis-cli PING | grep -q NOAUTH || { echo 'the server needs no password'; exit 1; }
    fi
    ${checks[*]@Q} >/dev/null || { cat /tmp/server.log; exit 1; }
    redis-cli RL.GCRA key 10 60 | xargs
    redis-cli CONFIG GET appendonly | xargs
    redis-cli SHUTDOWN NOSAVE; wait; rm -rf /data" | xargs) || true
  say "$reply"
  reply=${reply#"1 10 9 0 6000 appendonly "}
  [ "$reply" = "$([[ " $* " = *" --appendonly yes "* ]] && echo yes || echo no)" ]
}
check "redis-server ${default_command[*]}: RL.GCRA key 10 60 answers 1 10 9 0 6000" starts redis redis-cli -e RL.INSPECT none -- "${default_command[@]}"

part "compose.yaml and packaging/kubernetes.yaml"
# Without a password, and with one.
for password in '' a-long-secret; do
  values=$(read_file compose ${password:+"$password"})
  eval "$values"
  # shellcheck disable=SC2154 # `values` sets these.
  check "compose.yaml, $([ -z "$password" ] && echo without || echo with) a password: the server starts, and its health check passes then, and only then" \
    starts redis "${check[@]}" -- "${command[@]}"
done
values=$(read_file kubernetes a-long-secret)
eval "$values"
# shellcheck disable=SC2154 # `values` sets these.
{
  rm -rf "$roots/image/modules"
  mkdir "$roots/image/modules"
  chown "${user[0]}" "$roots/image/modules"
  quiet in_root image root "setpriv --reuid=${user[0]} --regid=${user[0]} --clear-groups ${bring[*]@Q}"
  # The pod has the library from the volume only.
  rm "$roots/image/usr/lib/redis/modules/libredis_rl.so"
  check "kubernetes.yaml: the init container brings the library, the server starts, the probe passes then, and only then" \
    starts "${user[0]}" "${check[@]}" -- "${command[@]}"
  check "kubernetes.yaml: so does the other probe" starts "${user[0]}" "${alive[@]}" -- "${command[@]}"
}

part "The wheel and the npm package"
say "-- In a bare root, without a network"
in_root trial root DEBIAN_FRONTEND=noninteractive \
  'apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io python3 python3-venv nodejs npm >/dev/null'
mkdir "$roots/trial/root/work"
cp "target/dist/$wheel" target/dist/*.tgz "$roots/trial/root/work/"
# trial N COMMAND: runs the Nth block, and then the command redis-rl that it has installed.
trial() {
  local heading="A wheel and an npm package" lines
  ran+=("$heading, $1")
  lines=$(block "$heading" "$1" | sed -E "s/redis_rl_server-.*\.whl/$wheel/")
  say "-- $heading" "$lines"
  OWN_NETWORK=yes quiet in_root trial root "cd /root/work
    from=\$(date +%s%N)
    $lines
    $2 serve >/dev/null & server=\$!
    until $2 call RL.GCRA user:7 10 60 2>/dev/null; do kill -0 \$server; sleep 0.05; done
    echo \"The first decision came \$(((\$(date +%s%N) - from) / 1000000)) ms after the installation began\"
    kill \$server
    wait \$server
    test -z \"\$(find /tmp -name 'redis-rl.*')\"" || die "docs/install.md: these lines fail."
  say "$(tail -n 1 "$roots/out")"
  check "RL.GCRA user:7 10 60 answers with labels" grep -qx 'remaining 9' "$roots/out"
}
trial 1 venv/bin/redis-rl
trial 2 node_modules/.bin/redis-rl
check "npx finds it, too" quiet in_root trial root 'cd /root/work && npx redis-rl --version'
say "-- On this machine"
scripts/wheel-test.sh made

check "All commands of docs/install.md ran, or say why not" \
  diff <(read_file blocks docs/install.md | sort) <(printf '%s\n' "${ran[@]}" | sort -u)
part ""
say "" "${results[@]}"
