#!/bin/bash
# Python for building and testing: Debian packages that are missing, then .venv exactly as requirements.lock says.
#
#   tests/setup/python.sh [--check]      --check: only say (by exit status) whether everything is there
#
# Rule: nothing to do costs nothing (a stamp holds the hash of the lock), a second run repairs a first one that was cut
# short, and the network is used only for what is not here yet. Wheels are kept, checked by hash, for the next clone.
# Settings: XDG_CACHE_HOME; pip's and apt's own configuration decide where things come from.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

# not another python3 that PATH may name: PyInstaller freezes the interpreter it runs in, and needs its shared library
PYTHON=/usr/bin/python3
PACKAGES=(python3 python3-venv libpython3.11 gcc linux-libc-dev binutils git iproute2 iputils-ping procps util-linux)
WHEELS=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico/wheels
STAMP=.venv/.lock-installed

stamp() { { sha256sum <requirements.lock; "$PYTHON" -V; pwd -P; } 2>/dev/null | sha256sum; }
ready() { [ -x .venv/bin/python ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(stamp)" ]; }
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
locked() { pip install --require-hashes --no-deps -r requirements.lock "$@"; }

if [ "${1:-}" = --check ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null && ready
  exit
fi

debian_install "${PACKAGES[@]}"
ready && exit 0
echo "setting up .venv from requirements.lock"
# a virtual environment that was copied, or made by another interpreter, is made afresh
if ! .venv/bin/python -c 'import os, sys, pip; sys.exit(not os.path.samefile(sys.prefix, ".venv"))' 2>/dev/null ||
  [ "$(.venv/bin/python -c 'import sys; print(sys.base_prefix, sys.version)')" != \
    "$("$PYTHON" -I -c 'import sys; print(sys.base_prefix, sys.version)')" ]; then
  "$PYTHON" -m venv --clear .venv
fi
rm -f "$STAMP"
mkdir -p "$WHEELS"
if ! locked --no-index --find-links "$WHEELS" 2>/dev/null; then
  pip download --require-hashes --no-deps --dest "$WHEELS" -r requirements.lock
  locked --no-index --find-links "$WHEELS"
fi
stamp >"$STAMP"
