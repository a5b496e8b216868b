#!/bin/bash
# Sets up what is missing, builds the executables, and runs the tests.
#
#   ./test.sh [--all] [-- PYTEST-ARGUMENT...]
#
#   --all   the slow tests too, and those that need kubelets and containerd (built once: some five minutes)
#
# What fails is run a second time and counts as failed when it fails again.
# pytest's summary names every test that was skipped, and why. A test that could run on this machine (root, network
# namespaces) and was skipped all the same counts as failed; tests/conftest.py has the rules.
set -euo pipefail
cd "$(dirname "$0")"

options=(--no-unexpected-skips)
while [ $# -gt 0 ]; do
  case $1 in
    --all) options+=(--slow); all=1 ;;
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
if [ -n "${all:-}" ]; then tests/setup/lab.sh; fi
build/build.sh
status=0
.venv/bin/python -m pytest "${options[@]}" "$@" || status=$?
if [ "$status" = 1 ]; then
  # real servers and a busy machine: what fails twice is broken, what passes now is named above and worth a look
  printf '\ntest.sh: some tests failed; these once more\n'
  status=0
  .venv/bin/python -m pytest "${options[@]}" "$@" --last-failed --last-failed-no-failures none || status=$?
fi
exit "$status"
