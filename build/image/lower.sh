#!/bin/bash
# The lower layer of the image, as an archive: what calico-node runs beside the bundle (BIRD, nft, iptables, ipset, ip, a
# shell), taken from the build root.
#
#   build/image/lower.sh ARCH [--check | --print]   ARCH: Debian's name of the processor
#                                                   --check: only report (by exit status) whether it is there
#                                                   --print: only print its path
# Rule: made once for a root and a list of what is taken, and kept beside the root. Settings: XDG_CACHE_HOME. Needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."
arch=${1:?Debian\'s name of the processor is missing: lower.sh ARCH}
archive() { echo "$(build/release/root.sh "$arch" --print)/lower-$(cat build/image/lower.py build/elf.py | sha256sum | cut -c 1-8).tar.gz"; }

case ${2:-} in
  --print)
    archive
    exit
    ;;
  --check)
    build/release/root.sh "$arch" --check && [ -f "$(archive)" ]
    exit
    ;;
esac
build/release/root.sh "$arch"
layer=$(archive)
[ -f "$layer" ] || /usr/bin/python3 build/image/lower.py "${layer%/*}/tree" "$layer"
