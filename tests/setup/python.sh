#!/bin/bash
# Python for building and testing: Debian packages that are missing, then .venv exactly as requirements.lock (what runs,
# and what freezes it) and requirements-tests.lock say.
#
#   tests/setup/python.sh [--build] [--check]      --build: without what only tests and linters need
#                                                  --check: only say (by exit status) whether everything is there
#
# Rule: nothing to do costs nothing (a stamp for each lock holds its hash), a second run repairs a first one that was cut
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
LOCKS=(requirements.lock requirements-tests.lock)
check=
for option; do
  case $option in
    --build) LOCKS=(requirements.lock) ;;
    --check) check=1 ;;
    *) echo "python.sh: unknown argument $option; known: --build, --check" >&2; exit 2 ;;
  esac
done

stamp_of() { echo ".venv/.$1-installed"; }
stamp() { { sha256sum <"$1"; "$PYTHON" -V; pwd -P; } 2>/dev/null | sha256sum; }
installed() { [ "$(cat "$(stamp_of "$1")" 2>/dev/null)" = "$(stamp "$1")" ]; }
ready() {
  local lock
  [ -x .venv/bin/python ] || return
  for lock in "${LOCKS[@]}"; do installed "$lock" || return; done
}
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }
locked() { pip install --require-hashes --no-deps --no-index --find-links "$WHEELS" -r "$1"; }

if [ -n "$check" ]; then
  debian_missing "${PACKAGES[@]}" >/dev/null && ready
  exit
fi

debian_install "${PACKAGES[@]}"
ready && exit 0
# a virtual environment that was copied, or made by another interpreter, is made afresh
if ! .venv/bin/python -c 'import os, sys, pip; sys.exit(not os.path.samefile(sys.prefix, ".venv"))' 2>/dev/null ||
  [ "$(.venv/bin/python -c 'import sys; print(sys.base_prefix, sys.version)')" != \
    "$("$PYTHON" -I -c 'import sys; print(sys.base_prefix, sys.version)')" ]; then
  "$PYTHON" -m venv --clear .venv
fi
mkdir -p "$WHEELS"
for lock in "${LOCKS[@]}"; do
  if installed "$lock"; then continue; fi
  echo "setting up .venv from $lock"
  rm -f "$(stamp_of "$lock")"
  if ! locked "$lock" 2>/dev/null; then
    pip download --require-hashes --no-deps --dest "$WHEELS" -r "$lock"
    locked "$lock"
  fi
  stamp "$lock" >"$(stamp_of "$lock")"
done
