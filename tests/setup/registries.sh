#!/bin/bash
# Registries and the programs that publish to them, for the tests of a release: Debian's docker-registry, skopeo and jq;
# crane and cosign, built from their modules, and sigstore-here, the services that cosign asks where there is no key.
#
#   tests/setup/registries.sh [--check]      --check: only say (by exit status) whether everything is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some ten minutes on two cores.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

PACKAGES=(docker-registry skopeo jq openssl)
CRANE=v0.22.1
COSIGN=v3.1.3
COSIGN_MODULE=github.com/sigstore/cosign/v3
SIGSTORE=v1.2.2
CERTIFICATE_LOG=v1.3.3
SOURCE=tests/setup/sigstore/main.go
HERE=$SIGSTORE-$(sha256sum <"$SOURCE" | cut -c 1-8)

there() { built "$BIN/crane" "$CRANE" && built "$BIN/cosign" "$COSIGN" && built "$BIN/sigstore-here" "$HERE"; }

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null && there
  exit
fi
debian_install "${PACKAGES[@]}"
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build-registries.lock"
flock 9
if there; then exit; fi
find_go
if ! built "$BIN/crane" "$CRANE"; then
  single "$BIN/crane" "$CRANE" github.com/google/go-containerregistry github.com/google/go-containerregistry/cmd/crane
fi
if ! built "$BIN/cosign" "$COSIGN"; then
  dir=$(module "$BIN/cosign" "$COSIGN" "$COSIGN_MODULE" </dev/null)
  compile "$BIN/cosign" "$COSIGN" "$dir" "$COSIGN_MODULE/cmd/cosign" \
    "-X sigs.k8s.io/release-utils/version.gitVersion=$COSIGN"
  rm -rf "$dir"
fi
if ! built "$BIN/sigstore-here" "$HERE"; then
  dir=$(module "$BIN/sigstore-here" "$SIGSTORE" github.com/sigstore/sigstore-go \
    <<<"require github.com/google/certificate-transparency-go $CERTIFICATE_LOG")
  cp "$SOURCE" "$dir"
  compile "$BIN/sigstore-here" "$HERE" "$dir" .
  rm -rf "$dir"
fi
