#!/bin/bash
# WireGuard outside of the kernel, for tests on kernels that have none, built from its Go module.
#
#   tests/setup/wireguard.sh [--check]      --check: only say (by exit status) whether it is there
#
# Settings as in build-go-tools.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

VERSION=v0.0.0-20250521234502-f333402bd9cb

begin "$BIN/wireguard" "$VERSION" "${1:-}"
single "$BIN/wireguard" "$VERSION" golang.zx2c4.com/wireguard golang.zx2c4.com/wireguard
