#!/bin/bash
# helm, for the tests of our chart; built from its module.
#
#   tests/setup/helm.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some four minutes on two cores.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

HELM=v3.19.5

begin "$BIN/helm" "$HELM" "$@"
dir=$(module "$BIN/helm" "$HELM" helm.sh/helm/v3 </dev/null)
# the Kubernetes that it templates for by itself
stamps="-X helm.sh/helm/v3/internal/version.version=$HELM"
for package in pkg/chartutil pkg/lint/rules; do
  stamps="$stamps -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=34"
done
compile "$BIN/helm" "$HELM" "$dir" helm.sh/helm/v3/cmd/helm "$stamps"
rm -rf "$dir"
