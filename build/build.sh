#!/bin/sh
# Builds the executables: calico, calico-ipam and the others of build/launch, over one shared contents directory.
#
#   build/build.sh [DIR]        (default dist/bin)
#
# Files that already exist and were made from the same sources are left alone. The executables run on this machine and
# on those with the same or a newer C library; build/install-bundle.sh makes them run on older ones.
set -eu
case ${1:-} in "" | /*) directory=${1:-} ;; *) directory=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
directory=${directory:-dist/bin}
tests/setup/python.sh --build
exec .venv/bin/python build/freeze.py "$directory"
