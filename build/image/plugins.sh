#!/bin/bash
# The reference CNI plugins that the image brings to nodes, in the versions of build/image/plugins/go.mod, with the licences
# of everything that is compiled into them.
#
#   build/image/plugins.sh ARCH [--check | --print]   ARCH: Debian's name of the processor (amd64, arm64)
#                                                     --check: only say (by exit status) whether they are there
#                                                     --print: only print the directory where they are
#
# In that directory: bin/NAME; modules, a line PATH VERSION HASH for each Go module in them ("std" is Go's own library);
# licences/PATH@VERSION/FILE.
# Rule: the same bytes anywhere: Go as build/toolchain.txt says (fetched as a Go module where it is not installed), hashes
# of all sources in go.sum, no path and no setting of this machine. Made once, and kept.
# Settings: XDG_CACHE_HOME, GO (a go command, 1.25 or newer); GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

ARCH=${1:-}
case $ARCH in
  amd64 | arm64) ;;
  *)
    echo "plugins.sh: cannot build for ${ARCH:-no processor}: known are amd64, arm64" >&2
    exit 2
    ;;
esac
SOURCE=$PWD/build/image/plugins
MODULE=github.com/containernetworking/plugins
VERSION=$(sed -n "s|^[[:space:]]*$MODULE \(v[0-9][^ ]*\).*|\1|p" "$SOURCE/go.mod")
PLUGINS=$(sed -n "s|^[[:space:]]*\($MODULE/plugins/.*\)|\1|p" "$SOURCE/go.mod")
TOOLCHAIN=go$(sed -n 's/^go //p' build/toolchain.txt)
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
KEY=$(cat build/image/plugins.sh "$SOURCE"/go.* - <<<"$TOOLCHAIN $ARCH" | sha256sum | cut -c 1-8)
MADE=$CACHE/plugins-$ARCH-$KEY

case ${2:-} in
  --print)
    echo "$MADE"
    exit
    ;;
  --check)
    [ -d "$MADE" ]
    exit
    ;;
esac
mkdir -p "$CACHE"
exec 9>"$CACHE/plugins.lock"
flock 9
[ ! -d "$MADE" ] || exit 0
find_go
# what an environment may set and would change the bytes
unset GOEXPERIMENT GOAMD64 GOARM64 GOGCCFLAGS GO_EXTLINK_ENABLED
export GOTOOLCHAIN=$TOOLCHAIN GOOS=linux GOARCH=$ARCH CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly
if ! answer=$("$GO" version 2>&1); then
  printf 'plugins.sh: cannot fetch %s, which build/toolchain.txt names:\n%s\n' "$TOOLCHAIN" "$(tail -n 3 <<<"$answer")" >&2
  exit 1
fi
scratch=$(mktemp -d "$CACHE/plugins.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
umask 022
mkdir "$scratch/made" "$scratch/made/bin"
echo "building the reference plugins $VERSION for $ARCH with $TOOLCHAIN"
for plugin in $PLUGINS; do
  (cd "$SOURCE" && nice "$GO" build -trimpath -buildvcs=false \
    -ldflags "-s -w -buildid= -X $MODULE/pkg/utils/buildversion.BuildVersion=$VERSION" \
    -o "$scratch/made/bin/${plugin##*/}" "$plugin")
done

# licences FROM NAME: all licence texts at the top of a module
licences() {
  local file found=
  mkdir -p "$scratch/made/licences/$2"
  while read -r file; do
    install -m 0644 "$file" "$scratch/made/licences/$2/${file##*/}"
    found=1
  done < <(find "$1" -maxdepth 1 -type f \( -iname 'LICEN[CS]E*' -o -iname 'COPYING*' -o -iname 'NOTICE*' \) | sort)
  [ -n "$found" ] || { echo "plugins.sh: cannot ship $2: no licence text in $1" >&2; exit 1; }
}

for program in "$scratch"/made/bin/*; do "$GO" version -m "$program"; done |
  awk '$1 == "mod" || $1 == "dep" { print $2, $3, $4 }' | LC_ALL=C sort -u >"$scratch/made/modules"
while read -r path version _; do
  licences "$(cd "$SOURCE" && "$GO" list -m -f '{{.Dir}}' "$path")" "$path@$version"
done <"$scratch/made/modules"
echo "std ${TOOLCHAIN#go} -" >>"$scratch/made/modules"
licences "$(cd "$SOURCE" && "$GO" env GOROOT)" "std@${TOOLCHAIN#go}"
chmod 755 "$scratch/made"
mv -T "$scratch/made" "$MADE"
