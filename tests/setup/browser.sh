#!/bin/bash
# A browser for the tests that look at pages: Debian's chromium, and a font.
#
#   tests/setup/browser.sh [--check]      --check: only say (by exit status) whether everything is there
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

PACKAGES=(chromium fonts-dejavu-core)

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null
  exit
fi
debian_install "${PACKAGES[@]}"
