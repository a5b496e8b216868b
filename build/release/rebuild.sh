#!/bin/bash
# Makes a release again, from its commit and the same Debian packages, and compares it with the one that was published.
#
#   build/release/rebuild.sh [--snapshot ADDRESS] [--at TIME] [--out DIR] BUILDINFO...
#
#   BUILDINFO           of each processor that is to be compared; the files of its release may lie beside it: then it is said
#                       where in a file the first difference is. With those of all processors what build/release/join.py
#                       makes of them is compared, too
#   --snapshot ADDRESS  an archive of Debian's past states (default https://snapshot.debian.org/archive)
#   --at TIME           a state to look into as well, such as 20261126T120000Z, where a package is in none of the others
#   --out DIR           keeps what was made, in DIR/ARCH and DIR/release
#
# Whose BUILDINFO it is is not asked here: build/release/verify.sh comes first. The sources are those of this clone at the
# commit that BUILDINFO names. Status: 0 the same bytes; 1 not, and which; 2 it could not be made, and why.
#
# Rule: what cannot be had (sources, packages) is said before anything is built, and the machine's own build root is neither
# used nor changed. Only wheels that are kept already are taken, since the lock has their sums.
# Needs what build/release.sh needs (root, Debian 12), a network, and time: a build root and a release for each processor.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
here=$repository/build/release

die() {
  echo "rebuild.sh: $*" >&2
  exit 2
}
differs() {
  echo "rebuild.sh: $*" >&2
  status=1
}

snapshot=https://snapshot.debian.org/archive
out=
states=()
while [ $# -gt 0 ]; do
  case $1 in
    --snapshot) snapshot=${2:?--snapshot wants an address} && shift ;;
    --at) states+=("${2:?--at wants a time}") && shift ;;
    --out) out=${2:?--out wants a directory} && shift ;;
    -h | --help) sed -n '2,/^# Rule/{/^# Rule/d;s/^# \{0,1\}//p;}' "$0" && exit ;;
    -*) die "unknown option $1; rebuild.sh --help" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || die "which release? rebuild.sh --help"
case $snapshot in http://?* | https://?*) snapshot=${snapshot%/} ;; *) die "no address: $snapshot; wanted is https://..." ;; esac
for state in ${states[@]+"${states[@]}"}; do
  grep -qxE '[0-9]{8}T[0-9]{6}Z' <<<"$state" || die "no time of a state of Debian: $state; wanted is 20261126T120000Z"
done
if [ -n "$out" ] && [ -e "$out" ]; then die "$out exists: name a directory that does not, or remove it"; fi
[ "$(id -u)" = 0 ] || die "it needs root, as build/release.sh does"

# what there is to say against it, before anything is made
processors=()
for info; do
  fields=$(python3 "$here/recipe.py" fields "$info") || exit 2
  read -r arch commit version _ <<<"$fields"
  case " ${processors[*]-} " in *" $arch "*) die "two BUILDINFOs for $arch" ;; esac
  processors+=("$arch")
  git -C "$repository" cat-file -e "$commit^{commit}" 2>/dev/null ||
    die "this clone does not have the commit $commit, from which $version was made: git fetch --tags, in a clone of its repository"
done

cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
mkdir -p "$cache"
work=$(mktemp -d "$cache/rebuild.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/made"
status=0

# write_sources TIME: the states of Debian in which the packages may be. An archive of states has one for each time when it
# looked, which was after the packages appeared; so it is asked for later ones, too
write_sources() {
  local at suite place later asked=(${states[@]+"${states[@]}"})
  for later in 0 8 48; do asked+=("$(date -u -d "$1 + $later hours" +%Y%m%dT%H%M%SZ)"); done
  for at in "${asked[@]}"; do
    for suite in bookworm bookworm-updates bookworm-security; do
      place=debian
      case $suite in *-security) place="debian-security" ;; esac
      echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $snapshot/$place/$at $suite main"
    done
  done
}

# require_snapshot SOURCES: each state in them is there. One that does not answer is asked twice, not for two minutes
require_snapshot() {
  local address suite patience=(-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  echo "asking $snapshot for Debian of that day"
  while read -r address suite; do
    /usr/lib/apt/apt-helper "${patience[@]}" download-file "$address/dists/$suite/InRelease" "$work/InRelease" >"$work/log" 2>&1 ||
      die "cannot reach an archive of Debian's past states: $(grep -m 1 '^E: ' "$work/log"); --snapshot names another"
  done < <(sed -E 's/^deb \[[^]]*\] (\S+) (\S+) main$/\1 \2/' "$1")
}

rebuild() { # BUILDINFO
  local arch commit version epoch debian directory sums name digest made where listed dirty=() had wanted
  read -r arch commit version epoch debian <<<"$(python3 "$here/recipe.py" fields "$1")"
  directory=$(dirname "$1")
  export XDG_CACHE_HOME=$work/cache-$arch DEBIAN_SOURCES=$work/sources-$arch.list DEBIAN_PINS=$work/pins-$arch
  write_sources "$debian" >"$DEBIAN_SOURCES"
  python3 "$here/recipe.py" pins "$1" >"$DEBIAN_PINS"
  require_snapshot "$DEBIAN_SOURCES"
  mkdir -p "$XDG_CACHE_HOME/cni-calico"
  if [ -d "$cache/wheels" ]; then ln -s "$cache/wheels" "$XDG_CACHE_HOME/cni-calico/wheels"; fi
  sources=$work/$arch/elsewhere/cni-calico
  git clone --quiet --shared --no-checkout "$repository" "$sources"
  git -C "$sources" checkout --quiet --detach "$commit"
  "$sources/build/release/root.sh" "$arch" || die "cannot make the build root of $version for $arch"
  python3 "$here/recipe.py" packages "$1" >"$work/wanted"
  had=$("$sources/build/release/root.sh" "$arch" --print)/packages
  wanted=$(LC_ALL=C comm -13 "$had" <(LC_ALL=C sort "$work/wanted") | head -n 1)
  [ -z "$wanted" ] ||
    die "the build root has not the packages of $1, the first is $wanted: --at names a time when Debian had it"
  wanted=$(LC_ALL=C comm -23 "$had" <(LC_ALL=C sort "$work/wanted") | head -n 1)
  [ -z "$wanted" ] || die "the build root has $wanted, which $1 does not list"
  case $version in *.dirty) dirty=(--dirty) ;; esac
  made=$work/made/$arch
  echo "making $version for $arch of $commit"
  SOURCE_DATE_EPOCH=$epoch "$sources/build/release.sh" --arch "$arch" ${dirty[@]+"${dirty[@]}"} "$made" >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    die "cannot make $version for $arch again"
  }
  sums=$(python3 "$here/recipe.py" sums "$1")
  while read -r digest name; do
    if [ ! -e "$made/$name" ]; then
      differs "$name: not made again"
    elif [ "$(sha256sum <"$made/$name" | cut -d ' ' -f 1)" != "$digest" ]; then
      where=
      if [ -e "$directory/$name" ] && [ "$(sha256sum <"$directory/$name" | cut -d ' ' -f 1)" = "$digest" ]; then
        where=$(python3 "$here/difference.py" "$directory/$name" "$made/$name") || true
      fi
      differs "$name differs${where:+: $where}"
    fi
  done <<<"$sums"
  listed=$(LC_ALL=C comm -13 <(cut -d ' ' -f 2 <<<"$sums" | LC_ALL=C sort) <(cut -c 67- "$made/SHA256SUMS" | LC_ALL=C sort))
  [ -z "$listed" ] || differs "made besides: $(paste -sd ' ' <<<"$listed")"
  if [ "$status" = 0 ]; then echo "$1: the same bytes ($(wc -l <<<"$sums") files)"; fi
}

# what join.py makes of all processors
rejoin() { # BUILDINFO...
  local info directory where name
  directory=$(dirname "$1")
  [ -f "$directory/provenance.json" ] || return 0
  # what was made with is equal by now; that the lists of Debian are of another day is all that BUILDINFO says besides
  for info; do cp "$info" "$work/made/$(python3 "$here/recipe.py" fields "$info" | cut -d ' ' -f 1)/"; done
  "$sources/.venv/bin/python" "$sources/build/release/join.py" "$work/made/release" "${processors[@]/#/$work/made/}" ||
    die "cannot join what was made again"
  while read -r _ name; do
    if ! cmp -s "$directory/$name" "$work/made/release/$name"; then
      where=$(python3 "$here/difference.py" "$directory/$name" "$work/made/release/$name") || true
      differs "$name differs${where:+: $where}"
    fi
  done <"$work/made/release/SHA256SUMS"
  cmp -s "$directory/SHA256SUMS" "$work/made/release/SHA256SUMS" || differs "SHA256SUMS differs"
  if [ "$status" = 0 ]; then echo "$directory: the same bytes ($(wc -l <"$directory/SHA256SUMS") files)"; fi
}

for info; do rebuild "$info"; done
if [ "$status" = 0 ] && [ $# -gt 1 ]; then rejoin "$@"; fi
if [ -n "$out" ]; then mv -T "$work/made" "$out"; fi
exit "$status"
