#!/bin/bash
# A Kubernetes API server, kubectl and kube-proxy, for the tests that need real ones; built from their modules.
#
#   tests/setup/kubernetes.sh [--check] [PROGRAM...]
#
# --check: only say (by exit status) whether they are there. PROGRAM: others of Kubernetes than these three, such as
# kubelet; e2e.test are its end-to-end tests, agnhost is what their pods run.
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. The first build takes
# some eight minutes on two cores and 4 GB of Go's caches.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

KUBERNETES=v1.34.4
CHECK=
if [ "${1:-}" = --check ]; then CHECK=1 && shift; fi
if [ $# = 0 ]; then set -- kube-apiserver kubectl kube-proxy; fi

missing() {
  local program
  for program in "$@"; do built "$BIN/$program" "$KUBERNETES" || echo "$program"; done
}

package_of() { # PROGRAM
  case $1 in
    e2e.test) echo test/e2e ;;
    agnhost) echo test/images/agnhost ;;
    *) echo "cmd/$1" ;;
  esac
}

# k8s.io/kubernetes replaces its staging modules by directories that its module does not hold: here each is replaced by
# the module published from it (v1.x.y is v0.x.y there)
staging() {
  local manifest path
  manifest=$(cd / && "$GO" mod download -json "k8s.io/kubernetes@$KUBERNETES" |
    sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",*$/\1/p')
  sed -n 's#^[[:space:]]*\(k8s\.io/[a-z-]*\) => \./staging.*#\1#p' "$manifest" | while read -r path; do
    echo "replace $path => $path v0.${KUBERNETES#v1.}"
    case $path in */sample-*) ;; *) echo "require $path v0.${KUBERNETES#v1.}" ;; esac
  done
}

todo=$(missing "$@")
if [ -n "$CHECK" ] || [ -z "$todo" ]; then
  [ -z "$todo" ]
  exit
fi
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build-kubernetes.lock"
flock 9
find_go
minor=${KUBERNETES#v1.}
stamps=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamps="$stamps -X $package.gitVersion=$KUBERNETES -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
done
replacements=$(staging)
dir=$(module "$BIN/kubernetes" "$KUBERNETES" k8s.io/kubernetes <<<"$replacements")
for program in $(missing "$@"); do
  compile "$BIN/$program" "$KUBERNETES" "$dir" "k8s.io/kubernetes/$(package_of "$program")" "$stamps"
done
rm -rf "$dir"
