#!/bin/bash
# netavark, which makes the networks of podman 5 and later, for the tests of our plugin for it; built from its crate.
#
#   tests/setup/netavark.sh [--check]      --check: only say (by exit status) whether it is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some three minutes on two cores. A cargo that is new enough is used, else Debian's newer one (cargo-web) is installed.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab); cargo's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

NETAVARK=1.17.1
CARGO_MINIMUM=1.86.0

cargo_is_new_enough() {
  local have
  have=$(cargo --version 2>/dev/null) || return 1
  have=${have#cargo }
  [ "$(printf '%s\n' "$CARGO_MINIMUM" "${have%% *}" | sort -V | head -n 1)" = "$CARGO_MINIMUM" ]
}

if [ "${1:-}" = --check ]; then
  debian_missing nftables >/dev/null && built "$BIN/netavark" "$NETAVARK"
  exit
fi
debian_install nftables protobuf-compiler libc6-dev gcc ca-certificates
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build-netavark.lock"
flock 9
if built "$BIN/netavark" "$NETAVARK"; then exit; fi
if ! cargo_is_new_enough; then debian_install cargo-web; fi
cargo_is_new_enough || { echo "cannot build netavark: no cargo $CARGO_MINIMUM or newer" >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
echo "building netavark $NETAVARK"
CARGO_TARGET_DIR=$root/target cargo install --quiet --locked --root "$root" --version "$NETAVARK" --bin netavark netavark
mkdir -p "$BIN" "$LAB_CACHE/mod"
mv "$root/bin/netavark" "$BIN/netavark"
echo "$NETAVARK" >"$LAB_CACHE/mod/netavark.version"
