#!/bin/bash
# BIRD 1.6 (Debian's package bird: bird and bird6), for the test that it is refused. It is unpacked, not installed: both
# packages have /usr/sbin/bird.
#
#   tests/setup/old-bird.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: made once, kept below LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab).
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
PLACE=$LAB_CACHE/old-bird

if [ "${1:-}" = --check ] || [ -x "$PLACE/usr/sbin/bird6" ]; then
  [ -x "$PLACE/usr/sbin/bird6" ]
  exit
fi
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/old-bird.lock"
flock 9
[ ! -x "$PLACE/usr/sbin/bird6" ] || exit 0
scratch=$(mktemp -d "$LAB_CACHE/old-bird.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
echo "unpacking BIRD 1.6"
if ! (cd "$scratch" && apt-get -q download bird) >"$scratch/log" 2>&1; then
  # the package lists are missing or older than the archive
  debian_apt update
  if ! (cd "$scratch" && apt-get -q download bird) >"$scratch/log" 2>&1; then
    tail -n 5 "$scratch/log" >&2
    exit 1
  fi
fi
dpkg -x "$scratch"/bird_*.deb "$scratch/tree"
rm -rf "$PLACE"
mv "$scratch/tree" "$PLACE"
