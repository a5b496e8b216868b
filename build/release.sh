#!/bin/bash
# Makes a release for x86-64: the tarball, Debian packages, the image, a bill of materials, SHA256SUMS of them, and
# BUILDINFO, which says what it was made from and with.
#
#   build/release.sh [OUT]          (default dist/release)
#
# Rule: the same sources, Debian packages and compiler (build/toolchain.txt) give the same bytes, from any directory.
# docs/build.md says what is in them.
# Settings: SOURCE_DATE_EPOCH; needs root, for the image's lower layer.
set -euo pipefail
umask 022
case ${1:-} in "" | /*) out=${1:-} ;; *) out=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
out=${out:-dist/release}
arch=amd64
if [ "$(uname -m)" != x86_64 ]; then
  echo "release.sh: cannot make a release: this machine is no x86-64" >&2
  exit 1
fi
tests/setup/python.sh --build
export PYTHONPATH=build:build/image:build/release
.venv/bin/python build/release/toolchain.py
build/build.sh
build/image/base.sh
build/image/plugins.sh "$arch"
.venv/bin/python build/release/release.py dist/bin "$(build/image/base.sh --print)" \
  "$(build/image/plugins.sh "$arch" --print)" "$out" --arch "$arch"
(cd "$out" && cat SHA256SUMS)
