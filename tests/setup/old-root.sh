#!/bin/bash
# A Debian 11 root (glibc 2.31) as an archive, for the test that the executables run on hosts older than this one.
#
#   tests/setup/old-root.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: made once, kept below LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab); packages come from where apt
# gets this machine's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
ARCHIVE=$LAB_CACHE/old-root.tar.gz

if [ "${1:-}" = --check ] || [ -f "$ARCHIVE" ]; then
  [ -f "$ARCHIVE" ]
  exit
fi
debian_install debootstrap
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/old-root.lock"
flock 9
[ ! -f "$ARCHIVE" ] || exit 0
scratch=$(mktemp -d "$LAB_CACHE/old-root.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2016 # apt's own placeholders
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
  awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }')
echo "making a Debian 11 root"
if ! debootstrap --variant=minbase bullseye "$scratch/tree" ${mirror:+"$mirror"} >"$scratch/log" 2>&1; then
  tail -n 5 "$scratch/log" >&2
  exit 1
fi
rm -rf "$scratch"/tree/{usr/share/{doc,man,locale,info},var/cache/apt,var/lib/apt/lists}
tar -C "$scratch/tree" -czf "$scratch/archive" .
mv "$scratch/archive" "$ARCHIVE"
