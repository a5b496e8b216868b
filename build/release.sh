#!/bin/bash
# Makes a release for x86-64: the tarball, Debian packages, the image, a bill of materials, and SHA256SUMS of them.
#
#   build/release.sh [OUT]          (default dist/release)
#
# Rule: the same sources, Debian packages and compiler give the same bytes. docs/build.md says what is in them.
# Settings: SOURCE_DATE_EPOCH; needs root, for the image's lower layer.
set -euo pipefail
umask 022
case ${1:-} in "" | /*) out=${1:-} ;; *) out=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
out=${out:-dist/release}
if [ "$(uname -m)" != x86_64 ]; then
  echo "release.sh: cannot make a release: this machine is no x86-64" >&2
  exit 1
fi
build/build.sh
build/image/base.sh
PYTHONPATH=build:build/image .venv/bin/python build/release/release.py dist/bin "$(build/image/base.sh --print)" "$out"
(cd "$out" && cat SHA256SUMS)
