#!/bin/bash
# A Kubernetes with kubelets and containerd, for the tests in tests/lab, with CoreDNS and Kubernetes' own end-to-end
# tests, and the images they run; nerdctl; built from Go modules and Debian packages.
#
#   tests/setup/lab.sh [--check]      --check: only say (by exit status) whether everything is there
#
# Rule: what is built in the version asked for is not built again; everything lies below LAB_CACHE. From nothing it takes
# some ten minutes on two cores after tests/setup/kubernetes.sh.
# Settings: LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab), GO (a go command, 1.25 or newer);
# GOPROXY, GOCACHE, GOMODCACHE are Go's own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

PACKAGES=(runc iptables conntrack ipset openssl iproute2 util-linux procps busybox-static)
KUBERNETES=(kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy agnhost e2e.test)
COREDNS=v1.12.1
CONTAINERD=v2.2.9
MODULE=github.com/containerd/containerd/v2
PROGRAMS=(containerd containerd-shim-runc-v2 ctr)

missing() {
  local program
  for program in "${PROGRAMS[@]}"; do built "$BIN/containerd/$program" "$CONTAINERD" || echo "$program"; done
}

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null
  tests/setup/build-go-tools.sh --check
  tests/setup/kubernetes.sh --check "${KUBERNETES[@]}"
  for layer in lower plugins; do "build/image/$layer.sh" "$(dpkg --print-architecture)" --check; done
  tests/setup/nerdctl.sh --check
  tests/setup/calico.sh --check
  tests/setup/flannel.sh --check
  tests/setup/npapi.sh --check
  built "$BIN/coredns" "$COREDNS"
  [ -z "$(missing)" ]
  exit
fi
debian_install "${PACKAGES[@]}"
tests/setup/build-go-tools.sh
tests/setup/kubernetes.sh "${KUBERNETES[@]}"
for layer in lower plugins; do "build/image/$layer.sh" "$(dpkg --print-architecture)"; done
tests/setup/nerdctl.sh
tests/setup/calico.sh
tests/setup/flannel.sh
tests/setup/npapi.sh
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/build-containerd.lock"
flock 9
if ! built "$BIN/coredns" "$COREDNS"; then
  find_go
  single "$BIN/coredns" "$COREDNS" github.com/coredns/coredns github.com/coredns/coredns
fi
if [ -n "$(missing)" ]; then
  find_go
  # what needs C libraries is left out
  export GOFLAGS=-tags=urfave_cli_no_docs,no_btrfs,no_zfs,no_devmapper
  dir=$(module "$BIN/containerd/containerd" "$CONTAINERD" "$MODULE" </dev/null)
  for program in $(missing); do
    compile "$BIN/containerd/$program" "$CONTAINERD" "$dir" "$MODULE/cmd/$program" "-X $MODULE/version.Version=$CONTAINERD"
  done
  rm -rf "$dir"
fi
