#!/bin/bash
# Builds the documentation site: one tree of pages, for a web server (the search needs one) or to be opened as files.
#
#   build/site/build.sh [DIR]      default: dist/site
#
# Needs python3 with venv. mkdocs and its theme come from build/site/requirements.lock into a virtual environment in the
# user's cache. A link that leads nowhere, or a page that is not in the navigation, is an error.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$(realpath -m "${1:-dist/site}")
lock=build/site/requirements.lock
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
venv=$cache/site-$(sha256sum <"$lock" | cut -c1-16)

mkdir -p "$cache"
exec 9>"$cache/site.lock"
flock 9
if [ ! -e "$venv/.complete" ]; then
  echo "setting up mkdocs from $lock"
  /usr/bin/python3 -m venv --clear "$venv"
  "$venv/bin/pip" --disable-pip-version-check --quiet install --require-hashes --no-deps -r "$lock"
  touch "$venv/.complete"
fi

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
/usr/bin/python3 build/site_pages.py "$pages"
SITE_PAGES=$pages SITE_OUTPUT=$output NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --quiet --clean --config-file build/site/mkdocs.yml
echo "$output/index.html"
