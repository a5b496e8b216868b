#!/bin/bash
# What build/release.sh does in the build root: freezes, makes the image's lower layer, and writes the release.
#
#   /build/sources/build/release/inside.sh ARCH COMMIT SUFFIX DATE
#
# In /build: sources; wheels and pip, from which Python's packages are installed; plugins, as build/image/plugins.sh made
# them; root, the build root as it was before; out, for what is made.
set -euo pipefail
umask 022
cd /build/sources
python3 -m venv --without-pip .venv
PYTHONPATH=/build/pip .venv/bin/python -m pip --disable-pip-version-check --quiet --no-cache-dir install --no-index --no-compile \
  --find-links /build/wheels --require-hashes --no-deps -r requirements.lock
export PYTHONPATH=build:build/image:build/release
.venv/bin/python build/release/toolchain.py
.venv/bin/python build/freeze.py dist/bin
.venv/bin/python build/image/lower.py /build/root /build/lower.tar.gz
.venv/bin/python build/release/release.py dist/bin /build/lower.tar.gz /build/plugins /build/out \
  --arch "$1" --commit "$2" --suffix "$3" --debian "$4"
