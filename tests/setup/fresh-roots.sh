#!/bin/bash
# Roots of fresh hosts, for the tests of install.sh: Debian 11, 12 and 13 with systemd, curl and openssl, and the packages
# that ours depend on in apt's cache, so that they can be installed without a network. Debian 12 has podman, too; the
# suite trixie-podman is Debian 13 with podman 5.
#
#   tests/setup/fresh-roots.sh [--check] [SUITE...]      --check: only say (by exit status) whether they are there
#
# Rule: made once, kept below LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab) as fresh-SUITE; one appears by a
# rename. Packages come from where apt gets this machine's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
HOST=(systemd dbus ca-certificates curl openssl iproute2 procps xz-utils)
DEPENDENCIES=(nftables iptables ipset iproute2 kmod bird2)

check=
if [ "${1:-}" = --check ]; then check=1 && shift; fi
[ $# != 0 ] || set -- bullseye bookworm trixie
missing=()
for suite; do [ -d "$LAB_CACHE/fresh-$suite" ] || missing+=("$suite"); done
[ -z "$check" ] || exit "$((${#missing[@]} != 0))"
[ "${#missing[@]}" != 0 ] || exit 0
debian_install mmdebstrap debian-archive-keyring
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/fresh-roots.lock"
flock 9
# shellcheck disable=SC2016 # apt's own placeholders
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
  awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }')
for suite in "${missing[@]}"; do
  [ ! -d "$LAB_CACHE/fresh-$suite" ] || continue
  scratch=$(mktemp -d "$LAB_CACHE/fresh.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  echo "making a fresh host with Debian's $suite"
  packages=("${HOST[@]}")
  case $suite in # before "-" it is Debian's name
    bullseye) packages+=(nftables iptables) ;; # the tarball brings no packages
    bookworm | *-podman) packages+=(podman crun netavark busybox-static) ;;
  esac
  # shellcheck disable=SC2016 # for the shell in the root
  if ! unshare --mount mmdebstrap --mode=root --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
    --aptopt='Acquire::Languages "none"' --skip=cleanup/apt --skip=cleanup/tmp --format=directory \
    --customize-hook='chroot "$1" apt-get -q -y -o APT::Install-Recommends=false --download-only install '"${DEPENDENCIES[*]}" \
    "${suite%-*}" "$scratch/tree" - <<<"deb [signed-by=$KEYRING] $mirror ${suite%-*} main" >"$scratch/log" 2>&1; then
    tail -n 5 "$scratch/log" >&2
    exit 1
  fi
  rm -rf "$scratch/tree"/{tmp/*,etc/resolv.conf,etc/hostname}
  echo "127.0.0.1 localhost" >"$scratch/tree/etc/hosts" # as every installer does
  mv -T "$scratch/tree" "$LAB_CACHE/fresh-$suite"
  rm -rf "$scratch"
done
