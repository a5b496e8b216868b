#!/bin/bash
# Sets up what is missing, builds the executables, and runs the tests.
#
#   ./test.sh [--all] [--kernel SERIES] [-- PYTEST-ARGUMENT...]
#
#   --all             the slow tests too, and those that need kubelets and containerd (built once: some five minutes)
#   --kernel SERIES   which of Debian's kernels runs in a virtual machine: 5.10, 6.1 (without it) or 6.12; --all: each
#
# Test files run in parallel. A test that fails is run a second time, alone, and counts as failed if it fails again.
# pytest's summary names every test that was skipped, and why. A test that could run on this machine (root, network
# namespaces) and was skipped all the same counts as failed; tests/conftest.py has the rules.
set -euo pipefail
cd "$(dirname "$0")"

options=(--no-unexpected-skips)
kernels=(6.1)
while [ $# -gt 0 ]; do
  case $1 in
    --all)
      options+=(--slow --timeout=900) # beside others, long tests take longer
      export KERNELS_NICE=${KERNELS_NICE:-0} # what takes longest should not wait for all others
      all=1
      ;;
    --kernel)
      shift
      kernels=("${1:?--kernel needs a series, such as 6.1}")
      options+=("--kernel=$1")
      ;;
    --)
      shift
      break
      ;;
    *)
      sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p;}' "$0" >&2
      exit 2
      ;;
  esac
  shift
done

tests/setup/python.sh
if [ "$(id -u)" = 0 ]; then
  tests/setup/tests.sh
  tests/setup/browser.sh
  if [ -n "${all:-}" ]; then tests/setup/kernels.sh; else tests/setup/kernels.sh "${kernels[@]}"; fi
fi
if [ -n "${all:-}" ]; then
  if [ "$(id -u)" = 0 ]; then KERNELS_ARCH=arm64 tests/setup/kernels.sh 6.1; fi
  for part in actionlint lab netavark registries; do "tests/setup/$part.sh"; done
  tests/setup/docker.sh 28 29
fi
# each of the processes below, and each program that a test starts, would compile the sources once more; pytest's copies
# of the test modules are made by the first one that imports them, while the executables are built
unset PYTHONDONTWRITEBYTECODE
.venv/bin/python -m compileall -q cni_calico build tests
.venv/bin/python -m pytest -n 0 -q --collect-only "${options[@]}" "$@" >/dev/null &
collecting=$!
build/build.sh
wait "$collecting" || true # what is wrong with it, pytest says below
# tests wait more than they compute: two at a time for each processor, and one more, because two left a quarter of the
# processors' time unused; a worker may start an API server of its own
workers=$(($(nproc) * 3))
room=$(($(awk '/^MemAvailable/ {print $2}' /proc/meminfo) >> 21)) # 2 GB for each, with all that its tests start
for most in 12 "$((room > 0 ? room : 1))"; do
  if [ "$workers" -gt "$most" ]; then workers=$most; fi
done
exec .venv/bin/python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder --again "${options[@]}" "$@"
