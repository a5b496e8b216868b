#!/bin/bash
# Upstream's CSI driver (csi.tigera.io), for the test that runs it beside our agent; built from its module.
#
#   tests/setup/calico-csi.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some minutes on two cores. The module's newest version that Go's proxy has is older than v3.32; the driver's calls and
# files are the same.
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

begin "$BIN/calico-csi" "$CALICO" "$@"
single "$BIN/calico-csi" "$CALICO" "$MODULE" "$MODULE/pod2daemon/csidriver"
