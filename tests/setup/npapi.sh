#!/bin/bash
# The conformance tests of ClusterNetworkPolicy, which are of the network policy API's module, as one program.
#
#   tests/setup/npapi.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: the version is that of the definition which manifests/clusternetworkpolicies.yaml has. Many of its tests try TCP, UDP
# and SCTP in turn; with LAB_WITHOUT_SCTP in the environment the program says that it leaves out a connection of SCTP, instead of
# failing for a kernel that has none. Nothing else of it is changed. It takes some 100 s of a processor.
# Settings as in build-go-tools.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

VERSION=v0.2.0
MODULE=sigs.k8s.io/network-policy-api
BUILT="$VERSION, without SCTP if asked to"

begin "$BIN/npapi.test" "$BUILT" "${1:-}"
dir=$(module "$BIN/npapi.test" "$VERSION" "$MODULE" <<<"replace $MODULE => ./changed")
source=$(cd / && "$GO" mod download -json "$MODULE@$VERSION" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p')
cp -r "$source" "$dir/changed"
chmod -R u+w "$dir/changed"
helper=$dir/changed/conformance/utils/kubernetes/helper.go
left_out='if protocol == "sctp" \&\& os.Getenv("LAB_WITHOUT_SCTP") != "" { t.Log("LEFT OUT: SCTP"); return }'
sed -i -e "/^func PokeServer(/a $left_out" -e 's/^import (/import (\n"os"/' "$helper"
grep -q 'LEFT OUT' "$helper" || { echo "cannot build npapi.test: $helper has no PokeServer" >&2; exit 1; }
compile "$BIN/npapi.test" "$BUILT" "$dir" "$MODULE/conformance"
rm -rf "$dir"
