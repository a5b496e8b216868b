#!/bin/bash
# nerdctl, for the test of the page about it; built from its module.
#
#   tests/setup/nerdctl.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some minutes on two cores.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

NERDCTL=v1.7.7
MODULE=github.com/containerd/nerdctl

begin "$BIN/nerdctl" "$NERDCTL" "$@"
dir=$(module "$BIN/nerdctl" "$NERDCTL" "$MODULE" </dev/null)
compile "$BIN/nerdctl" "$NERDCTL" "$dir" "$MODULE/cmd/nerdctl" "-X $MODULE/pkg/version.Version=$NERDCTL"
rm -rf "$dir"
