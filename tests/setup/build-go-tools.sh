#!/bin/bash
# The Go programs that tests run beside ours: etcd, cnitool and the reference CNI plugins, built from their modules.
#
#   tests/setup/build-go-tools.sh [--check]      --check: only say (by exit status) whether all are there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

CNI_BIN=$LAB_CACHE/cni/bin
ETCD=v3.5.24
CNITOOL=v1.3.0
PLUGINS=v1.9.1
PLUGIN_SOURCES=(main/bridge main/ptp main/loopback ipam/host-local meta/portmap meta/bandwidth meta/tuning)

missing() {
  built "$BIN/etcd" "$ETCD" || echo etcd
  built "$BIN/cnitool" "$CNITOOL" || echo cnitool
  local source
  for source in "${PLUGIN_SOURCES[@]}"; do
    built "$CNI_BIN/${source##*/}" "$PLUGINS" || echo "$source"
  done
}

todo=$(missing)
if [ "${1:-}" = --check ] || [ -z "$todo" ]; then
  [ -z "$todo" ]
  exit
fi
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build.lock"
flock 9
find_go
for name in $(missing); do
  case $name in
    etcd) single "$BIN/etcd" "$ETCD" go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3 ;;
    cnitool)
      single "$BIN/cnitool" "$CNITOOL" github.com/containernetworking/cni github.com/containernetworking/cni/cnitool ;;
    *)
      single "$CNI_BIN/${name##*/}" "$PLUGINS" github.com/containernetworking/plugins \
        "github.com/containernetworking/plugins/plugins/$name" ;;
  esac
done
