#!/bin/bash
# The root that releases are built in and that the image's lower layer is taken from: a Debian 12 of its own, with the
# updates and security updates, a compiler, Python, and the programs that calico-node starts.
#
#   build/release/root.sh ARCH            ARCH: Debian's name of the processor. Makes the root where there is none, and asks
#                                         Debian for news of one that is older than seven days
#   build/release/root.sh ARCH --update   asks Debian in any case
#   build/release/root.sh ARCH --news     only prints what Debian has newer, as apt does; fails if there is something, or if the
#                                         root is older than seven days
#   build/release/root.sh ARCH --check    only reports (by exit status) whether there is one
#   build/release/root.sh ARCH --print    only prints where it is
#   build/release/root.sh ARCH --date     only prints of when the newest of Debian's lists was that its packages are from
#   build/release/root.sh --sources       only prints where packages come from
#
# In that directory: tree, the root; packages, a line NAME=VERSION for each; lists, what apt knew when Debian was asked last.
# Rule: its name is a hash of this script and of the packages with their versions, so a new package makes another root, and
# one that is in use stays as it is for six days. It appears by a rename: what was cut short is begun anew. Packages come
# from the same mirrors as this machine's own. For another processor than this machine's, programs are emulated
# (build/release/foreign.sh, which says what that needs): a quarter of an hour instead of a minute.
# Settings: XDG_CACHE_HOME; DEBIAN_SOURCES, a file with the lines that say where packages come from in the place of this
# machine's mirrors, and DEBIAN_PINS, one with preferences of apt (build/release/rebuild.sh has both). Needs root, and
# mmdebstrap, which it installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

RELEASE=bookworm
BUILD=(python3 libpython3.11 gcc binutils linux-libc-dev)
IMAGE=(bird2 nftables iptables ipset iproute2 kmod)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
DAYS=7

die() {
  echo "root.sh: $*" >&2
  exit 1
}

# where this machine's apt has each suite from
sources() {
  if [ -n "${DEBIAN_SOURCES:-}" ]; then
    cat "$DEBIAN_SOURCES"
    return
  fi
  local known suite address
  # shellcheck disable=SC2016 # apt's own placeholders
  known=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)' 'Created-By: Packages')
  for suite in "$RELEASE" "$RELEASE-updates" "$RELEASE-security"; do
    address=$(awk -v suite="$suite" '$1 == "Debian" && $2 == "main" && $3 == suite { print $4; exit }' <<<"$known")
    if [ -z "$address" ]; then
      die "cannot make a build root: apt on this machine has no mirror of Debian's suite $suite, from which its packages" \
        "would come; name one in /etc/apt/sources.list and run apt-get update"
    fi
    echo "deb [signed-by=$KEYRING] $address $suite main"
  done
}

if [ "${1:-}" = --sources ]; then
  sources
  exit
fi
ARCH=${1:-}
case $ARCH in
  amd64 | arm64) ;;
  *)
    echo "root.sh: cannot make a build root for ${ARCH:-no processor}: known are amd64, arm64" >&2
    exit 2
    ;;
esac
# the name of the newest root, where one is
NEWEST=$CACHE/root-$ARCH-$(sha256sum build/release/root.sh | cut -c 1-8)

there() { [ -d "$NEWEST/tree" ]; }
old() { [ -n "$(find "$NEWEST/asked" -mtime +$((DAYS - 1)) 2>/dev/null)" ] || [ ! -e "$NEWEST/asked" ]; }

# apt with the root's packages, and lists in a directory of their own
apt_of_root() { # lists, arguments of apt-get
  local lists=$1
  shift
  mkdir -p "$lists/partial" "$scratch/cache/archives/partial" "$scratch/none"
  sources >"$scratch/sources.list"
  apt-get -q -o "Dir::State::status=$NEWEST/tree/var/lib/dpkg/status" -o "Dir::State::lists=$lists" \
    -o "Dir::Etc::sourcelist=$scratch/sources.list" -o "Dir::Etc::sourceparts=$scratch/none" \
    -o "Dir::Etc::preferencesparts=$scratch/none" -o "Dir::Etc::preferences=${DEBIAN_PINS:-$scratch/none/preferences}" -o "Dir::Cache=$scratch/cache" -o "Dir::Log=$scratch" -o "APT::Architecture=$ARCH" \
    -o "APT::Architectures::=$ARCH" -o Acquire::Languages=none -o APT::Sandbox::User=root -o APT::Get::Show-User-Simulation-Note=false "$@"
}

# asks Debian; prints what is newer than in the root
news() {
  if ! apt_of_root "$scratch/lists" update >"$scratch/log" 2>&1 || grep -q '^[WE]: ' "$scratch/log"; then
    die "cannot ask Debian for newer packages: $(grep '^[WE]: ' "$scratch/log" | head -n 1)"
  fi
  apt_of_root "$scratch/lists" -s dist-upgrade | sed -n 's/^Inst //p'
}

make_root() {
  debian_install mmdebstrap debian-archive-keyring
  local listed skipped=(cleanup/apt/lists cleanup/tmp) pinned=()
  listed=$(sources)
  # whether its programs run here is asked of foreign.sh, which says what is missing
  if [ "$ARCH" != "$(dpkg --print-architecture)" ]; then
    build/release/foreign.sh "$ARCH" true || exit
    skipped+=(check/qemu)
  fi
  if [ -n "${DEBIAN_PINS:-}" ]; then
    # shellcheck disable=SC2016 # for mmdebstrap's shell, which gives the root as its argument
    pinned=(--setup-hook='cp "$DEBIAN_PINS" "$1/etc/apt/preferences.d/pins"' --customize-hook='rm "$1/etc/apt/preferences.d/pins"')
  fi
  echo "making a build root for $ARCH"
  # in a mount namespace of its own: what it mounts ends with it, however it ends
  if ! build/release/foreign.sh "$ARCH" unshare --mount mmdebstrap --mode=root --variant=minbase --architectures="$ARCH" \
    --include="$(IFS=,; echo "${BUILD[*]},${IMAGE[*]}")" --aptopt='Acquire::Languages "none"' \
    "${skipped[@]/#/--skip=}" ${pinned[@]+"${pinned[@]}"} --format=directory "$RELEASE" "$scratch/made/tree" - \
    <<<"$listed" >"$scratch/log" 2>&1; then
    tail -n 5 "$scratch/log" >&2
    exit 1
  fi
  local tree=$scratch/made/tree name
  mv "$tree/var/lib/apt/lists" "$scratch/made/lists"
  rm -rf "$scratch/made/lists"/{lock,partial,auxfiles} "$tree/tmp"/* "$tree"/var/{cache/apt,log}/* "$tree"/etc/{resolv.conf,hostname}
  mkdir "$tree/var/lib/apt/lists"
  # shellcheck disable=SC2016 # dpkg's own placeholders
  dpkg-query --admindir="$tree/var/lib/dpkg" -W -f '${Package}=${Version}\n' | LC_ALL=C sort >"$scratch/made/packages"
  touch "$scratch/made/asked"
  chmod 755 "$scratch/made"
  name=$NEWEST-$(sha256sum <"$scratch/made/packages" | cut -c 1-8)
  if [ -d "$name" ]; then rm -rf "$name.old" && mv -T "$name" "$name.old"; fi
  mv -T "$scratch/made" "$name"
  ln -sfn "${name##*/}" "$scratch/newest"
  mv -fT "$scratch/newest" "$NEWEST"
  # others may still build in an older one
  find "$CACHE" -maxdepth 1 -name "root-$ARCH-*" ! -path "$name" ! -path "$NEWEST" -mtime +6 -exec rm -rf {} +
}

case ${2:-} in
  --print)
    readlink -f "$NEWEST"
    exit
    ;;
  --check)
    there
    exit
    ;;
  --date)
    there || die "there is no build root for $ARCH yet: build/release/root.sh $ARCH makes it"
    sed -n 's/^Date: //p' "$NEWEST"/lists/*Release | while read -r date; do date -u -d "$date" +%FT%TZ; done | sort | tail -n 1
    exit
    ;;
  "" | --update | --news) ;;
  *)
    echo "root.sh: unknown argument $2; build/release/root.sh begins with its arguments" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || die "needs root: it makes a Debian root with its devices and owners"
mkdir -p "$CACHE"
exec 9>"$CACHE/root-$ARCH.lock"
flock 9
# of a run that was killed
rm -rf "$CACHE/root-$ARCH".??????
scratch=$(mktemp -d "$CACHE/root-$ARCH.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
mkdir -p "$scratch/made"
if ! there; then
  [ "${2:-}" != --news ] || die "there is no build root for $ARCH yet: build/release/root.sh $ARCH makes it"
  make_root
  exit
fi
if [ "${2:-}" = --news ]; then
  found=$(news)
  [ -z "$found" ] || printf '%s\n' "$found"
  if old; then
    echo "root.sh: Debian was asked more than $DAYS days ago: build/release/root.sh $ARCH --update asks again" >&2
    exit 1
  fi
  [ -z "$found" ]
  exit
fi
if [ -z "${2:-}" ] && ! old; then exit 0; fi
found=$(news)
if [ -n "$found" ]; then
  printf 'newer in Debian:\n%s\n' "$found"
  make_root
else
  rm -rf "$scratch/lists"/{lock,partial,auxfiles}
  rm -rf "$NEWEST/lists" && mv "$scratch/lists" "$NEWEST/lists"
  touch "$NEWEST/asked"
fi
