#!/bin/bash
# What the tests need beyond Python: Debian packages, Go programs, a Debian 11 root.
#
#   tests/setup/tests.sh [--check]      --check: only say (by exit status) whether everything is there
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

PACKAGES=(debootstrap nftables iptables bird2 openssl)

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null && tests/setup/build-go-tools.sh --check && tests/setup/old-root.sh --check
  exit
fi
debian_install "${PACKAGES[@]}"
tests/setup/build-go-tools.sh
tests/setup/old-root.sh
