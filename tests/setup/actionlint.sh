#!/bin/bash
# actionlint, which reads the workflows as GitHub does; built from its module.
#
#   tests/setup/actionlint.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# half a minute.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

ACTIONLINT=v1.7.7

begin "$BIN/actionlint" "$ACTIONLINT" "$@"
single "$BIN/actionlint" "$ACTIONLINT" github.com/rhysd/actionlint github.com/rhysd/actionlint/cmd/actionlint
