#!/bin/bash
# flannel's own program, for the test that moves a network of it to ours, built from its Go module.
#
#   tests/setup/flannel.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: it is flannel's main package without two backends that the test has no use for: Tencent's, whose library may not be
# had, and udp, which needs a C compiler. It takes some 100 s of a processor.
# Settings as in build-go-tools.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

VERSION=v0.28.10
MODULE=github.com/flannel-io/flannel

begin "$BIN/flanneld" "$VERSION" "${1:-}"
source=$(cd / && "$GO" mod download -json "$MODULE@$VERSION" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
dir=$(module "$BIN/flanneld" "$VERSION" "$MODULE" </dev/null)
sed '/backend\/tencentvpc"/d; /backend\/udp"/d' "$source/main.go" >"$dir/main.go"
compile "$BIN/flanneld" "$VERSION" "$dir" .
rm -rf "$dir"
