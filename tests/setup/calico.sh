#!/bin/bash
# Upstream's CSI driver (csi.tigera.io) and Dikastes, for the tests that run them beside our agent; built from their module.
#
#   tests/setup/calico.sh [--check]      --check: only say (by exit status) whether they are there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some minutes on two cores. The module's newest version that Go's proxy has is older than v3.32: the CSI driver's calls and
# files are the same, the names of policies in Dikastes' messages are not.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

CALICO=v1.11.0-cni-plugin.0.20250813170300-a0db560f0520
MODULE=github.com/projectcalico/calico
declare -A PACKAGES=([calico-csi]=pod2daemon/csidriver [dikastes]=app-policy/cmd/dikastes)

missing() {
  local program
  for program in "${!PACKAGES[@]}"; do built "$BIN/$program" "$CALICO" || echo "$program"; done
}

if [ "${1:-}" = --check ]; then
  [ -z "$(missing)" ]
  exit
fi
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build-calico.lock"
flock 9
for program in $(missing); do
  find_go
  single "$BIN/$program" "$CALICO" "$MODULE" "$MODULE/${PACKAGES[$program]}"
done
