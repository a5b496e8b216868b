#!/bin/bash
# Docker 20.10 of Debian, for the tests of its network driver: unpacked, not installed, so that no daemon of this machine
# is started or changed.
#
#   tests/setup/docker.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: made once, kept below LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab); packages come from where apt
# gets this machine's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
TREE=$LAB_CACHE/docker-20.10
# what dockerd is linked with, or starts
LIBRARIES=(libdevmapper1.02.1 libsystemd0 runc)

if [ "${1:-}" = --check ]; then
  debian_missing "${LIBRARIES[@]}" >/dev/null
  [ -x "$TREE/usr/sbin/dockerd" ] && [ -x "$TREE/usr/bin/containerd" ]
  exit
fi
debian_install "${LIBRARIES[@]}"
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/docker.lock"
flock 9
[ ! -x "$TREE/usr/sbin/dockerd" ] || exit 0
scratch=$(mktemp -d "$LAB_CACHE/docker.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
echo "fetching Docker"
(cd "$scratch" && { apt-get -q download docker.io containerd >log 2>&1 ||
  { debian_apt update && apt-get -q download docker.io containerd >log 2>&1; } || { tail -n 5 log >&2; exit 1; }; })
for package in "$scratch"/*.deb; do
  dpkg-deb -x "$package" "$scratch/tree"
done
rm -rf "$scratch"/tree/usr/share "$TREE"
mv "$scratch/tree" "$TREE"
