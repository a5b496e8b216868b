#!/bin/bash
# Makes a release: the tarball, Debian packages, both images, a bill of materials, SHA256SUMS of them, and BUILDINFO, which
# says what it was made from and with.
#
#   build/release.sh [--arch ARCH] [--dirty] [OUT]          (default dist/release, this machine's processor)
#
#   --dirty   for a trial: also from a work tree with changes, with a changelog that still says "(unreleased)", and in a build
#             root for which Debian has newer packages; the version then ends in ".dirty"
#
# Rule: everything is made in a root of its own (build/release/root.sh), without a network, from the committed files alone,
# with the compilers of build/toolchain.txt; so the same commit and packages give the same bytes, whatever is installed
# here and wherever the sources lie. What would be refused later is refused first. docs/build.md says what is in a release.
# For another processor than this machine's, what runs in the build root is emulated: half an hour instead of some minutes.
# Settings: SOURCE_DATE_EPOCH, XDG_CACHE_HOME. Needs root, for the build root.
set -euo pipefail
umask 022

die() {
  echo "release.sh: cannot make a release: $*" >&2
  exit 1
}
arch=$(dpkg --print-architecture)
dirty=
out=
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=${2:?--arch wants the name of a processor} && shift ;;
    --dirty) dirty=1 ;;
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
    -*) die "unknown option $1; build/release.sh --help" ;;
    /*) out=$1 ;;
    *) out=$PWD/$1 ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
out=${out:-$PWD/dist/release}
case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) die "no release for $arch: known are amd64, arm64" ;;
esac
[ "$(id -u)" = 0 ] || die "it needs root, to change into the build root"
commit=$(git rev-parse HEAD 2>/dev/null) || die "this is no git work tree, so nobody could say what it was made from"
changed=$(git status --porcelain)
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' cni_calico/__init__.py)

if [ -z "$dirty" ]; then
  [ -z "$changed" ] || die "the work tree has changes: commit them, or make a trial with --dirty"$'\n'"$(head -n 5 <<<"$changed")"
  tags=$(git tag --points-at HEAD)
  if [ -n "$tags" ] && ! grep -qxF "v$version" <<<"$tags"; then
    die "the commit is tagged $(paste -sd ' ' <<<"$tags"), and cni_calico/__init__.py says $version"
  fi
  if grep -qF "## $version (unreleased)" CHANGELOG.md; then
    die "CHANGELOG.md still calls $version unreleased: write its date, or make a trial with --dirty"
  fi
fi
tests/setup/python.sh --build
build/release/root.sh "$arch"
if [ -z "$dirty" ] && ! newer=$(build/release/root.sh "$arch" --news); then
  [ -n "$newer" ] || die "nobody knows whether Debian has newer packages than the build root"
  die "Debian has newer packages than the build root: build/release/root.sh $arch --update takes them"$'\n'"$newer"
fi
build/image/plugins.sh "$arch"

made_root=$(build/release/root.sh "$arch" --print)
# of runs that were killed
find "${made_root%/*}" -maxdepth 1 -name 'release.??????' -mtime +0 -exec rm -rf {} +
scratch=$(mktemp -d "${made_root%/*}/release.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
cp -a --reflink=auto "$made_root/tree" "$scratch/root"
work=$scratch/root/build
mkdir -p "$work"/{sources,wheels,pip,plugins,root,out}
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi
done | tar --null --no-recursion --mode=u+rw,go-w,go+rX -T - -cf - | tar -C "$work/sources" --no-same-owner -xf -
cp -R "$(build/image/plugins.sh "$arch" --print)/." "$work/plugins"
# exactly the wheels of the lock, from those that are kept; pip would ask this machine which ones fit
wheels=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico/wheels
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet download --require-hashes --no-deps --only-binary ":all:"
  --platform "manylinux2014_$machine" --python-version 3.11 --dest "$work/wheels" -r requirements.lock)
if ! "${pip[@]}" --no-index --find-links "$wheels" 2>/dev/null; then
  "${pip[@]}"
  cp "$work"/wheels/*.whl "$wheels"
fi
# with its times, by which Python knows that what is compiled there is still valid
cp -a .venv/lib/python3*/site-packages/pip "$work/pip"

# shellcheck disable=SC2016 # for the shell in the namespaces
build/release/foreign.sh "$arch" unshare --mount --pid --net --fork --kill-child sh -euc '
  mount --bind "$1/tree" "$0/build/root"
  mount -o remount,bind,ro "$0/build/root"
  mount --rbind /dev "$0/dev"
  mount -t proc proc "$0/proc"
  shift
  root=$0
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/build LC_ALL=C.UTF-8 TZ=UTC SOURCE_DATE_EPOCH="$1" \
    chroot "$root" /build/sources/build/release/inside.sh "$2" "$3" "$4" "$5"
' "$scratch/root" "$made_root" "${SOURCE_DATE_EPOCH:-}" "$arch" "$commit${changed:+ (changed)}" "${dirty:+.dirty}" \
  "$(build/release/root.sh "$arch" --date)"
mkdir -p "$out"
cp "$work"/out/* "$out"
cat "$out/SHA256SUMS"
