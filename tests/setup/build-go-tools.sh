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

LAB_CACHE=${LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-lab}
BIN=$LAB_CACHE/bin
CNI_BIN=$LAB_CACHE/cni/bin
ETCD=v3.5.24
CNITOOL=v1.3.0
PLUGINS=v1.9.1
GO_MINIMUM=1.25.0
PLUGIN_SOURCES=(main/bridge main/ptp main/loopback ipam/host-local meta/portmap meta/bandwidth meta/tuning)

built() { [ -x "$1" ] && [ "$(cat "$LAB_CACHE/mod/${1##*/}.version" 2>/dev/null)" = "$2" ]; }

missing() {
  built "$BIN/etcd" "$ETCD" || echo etcd
  built "$BIN/cnitool" "$CNITOOL" || echo cnitool
  local source
  for source in "${PLUGIN_SOURCES[@]}"; do
    built "$CNI_BIN/${source##*/}" "$PLUGINS" || echo "$source"
  done
}

new_enough() { # go command
  local have
  have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "$GO_MINIMUM" "${have#go}" | sort -V | head -n 1)" = "$GO_MINIMUM" ]
}

# Sets GO to a go command that is new enough: one that is here, else a toolchain fetched as a Go module, for which the
# distribution's older go is enough.
find_go() {
  local candidate answer root
  for candidate in "${GO:-}" /usr/local/go/bin/go "$(command -v go || true)" "$LAB_CACHE/go/bin/go"; do
    if [ -n "$candidate" ] && new_enough "$candidate"; then
      GO=$candidate
      return
    fi
  done
  candidate=$(command -v go) || {
    debian_install golang-go ca-certificates
    candidate=/usr/bin/go
  }
  answer=$(cd / && "$candidate" mod download -json "golang.org/toolchain@v0.0.1-go$GO_MINIMUM.linux-$(dpkg --print-architecture)")
  root=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
  # modules are unpacked without the executable bit, and read-only
  rm -rf "$LAB_CACHE/go"
  cp -r "$root" "$LAB_CACHE/go"
  chmod -R u+wX "$LAB_CACHE/go"
  chmod -R u+x "$LAB_CACHE/go/bin" "$LAB_CACHE/go/pkg/tool"
  GO=$LAB_CACHE/go/bin/go
  new_enough "$GO" || { echo "cannot build the test programs: no Go $GO_MINIMUM or newer" >&2; exit 1; }
}

# compile FILE VERSION MODULE PACKAGE: in a throw-away module that requires nothing but that version
compile() {
  local dir=$LAB_CACHE/mod/${1##*/}.src started=$SECONDS
  rm -rf "$dir"
  mkdir -p "$dir" "${1%/*}"
  printf 'module tools\n\ngo 1.24.0\n\nrequire %s %s\n' "$3" "$2" >"$dir/go.mod"
  (cd "$dir" && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 \
    nice "$GO" build -mod=mod -trimpath -ldflags '-s -w' -o "$1.new" "$4")
  mv -f "$1.new" "$1"
  echo "$2" >"$LAB_CACHE/mod/${1##*/}.version"
  rm -rf "$dir"
  echo "built ${1##*/} $2 in $((SECONDS - started)) s"
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
    etcd) compile "$BIN/etcd" "$ETCD" go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3 ;;
    cnitool)
      compile "$BIN/cnitool" "$CNITOOL" github.com/containernetworking/cni github.com/containernetworking/cni/cnitool ;;
    *)
      compile "$CNI_BIN/${name##*/}" "$PLUGINS" github.com/containernetworking/plugins \
        "github.com/containernetworking/plugins/plugins/$name" ;;
  esac
done
