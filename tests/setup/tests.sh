#!/bin/bash
# What the tests need beyond Python: Debian packages, Go programs (etcd, an API server, cnitool, reference plugins, helm), a
# Debian 11 root, BIRD 1.6. From nothing it takes some ten minutes on two cores, most of them for the API server.
#
#   tests/setup/tests.sh [--check]      --check: only say (by exit status) whether everything is there
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

# the native front once more: with sanitizers (they need a C library), and for arm64, whose programs are also emulated
COMPILERS=(libc6-dev gcc-aarch64-linux-gnu linux-libc-dev-arm64-cross qemu-user qemu-user-static)
PACKAGES=(debootstrap mmdebstrap etcd-client nftables iptables ipset conntrack iperf3 bird2 runit openssl prometheus podman containernetworking-plugins busybox-static groff-base ruby bsdextrautils fish zsh "${COMPILERS[@]}")

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null
  for part in build-go-tools wireguard kubernetes old-root old-bird helm docker; do "tests/setup/$part.sh" --check; done
  exit
fi
debian_install "${PACKAGES[@]}"
for part in build-go-tools wireguard kubernetes old-root old-bird helm docker; do "tests/setup/$part.sh"; done
