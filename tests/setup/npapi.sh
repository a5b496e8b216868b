#!/bin/bash
# The conformance tests of ClusterNetworkPolicy, which are of the network policy API's module, as one program.
#
#   tests/setup/npapi.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: the version is that of the definition which manifests/clusternetworkpolicies.yaml has. It takes some 100 s of a
# processor.
# Settings as in build-go-tools.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

VERSION=v0.2.0
MODULE=sigs.k8s.io/network-policy-api

begin "$BIN/npapi.test" "$VERSION" "${1:-}"
single "$BIN/npapi.test" "$VERSION" "$MODULE" "$MODULE/conformance"
