#!/bin/bash
# Sets up what is missing, builds the executables, and runs the tests.
#
#   ./test.sh [--all] [-- PYTEST-ARGUMENT...]
#
#   --all   the slow tests too, and those that need kubelets and containerd (built once: some five minutes)
#
# Test files run in parallel. A test that fails is run a second time, alone, and counts as failed if it fails again.
# pytest's summary names every test that was skipped, and why. A test that could run on this machine (root, network
# namespaces) and was skipped all the same counts as failed; tests/conftest.py has the rules.
set -euo pipefail
cd "$(dirname "$0")"

options=(--no-unexpected-skips)
while [ $# -gt 0 ]; do
  case $1 in
    --all) options+=(--slow --timeout=900); all=1 ;; # beside others, long tests take longer
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
if [ "$(id -u)" = 0 ]; then tests/setup/tests.sh; fi
if [ -n "${all:-}" ]; then
  for part in lab browser netavark; do "tests/setup/$part.sh"; done
fi
build/build.sh
# tests wait more than they compute: two at a time for each processor; a worker may start an API server of its own
workers=$(($(nproc) * 2))
if [ "$workers" -gt 12 ]; then workers=12; fi
exec .venv/bin/python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder --again "${options[@]}" "$@"
