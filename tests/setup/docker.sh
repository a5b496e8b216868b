#!/bin/bash
# Docker, for the tests of its network driver: unpacked, not installed, so that no daemon of this machine is started or
# changed. 20.10 is this Debian's; 28 is that of Debian's newest suite, with its compose; 29 is dockerd, and the runc that
# it needs, built from their Go modules, beside the rest of 28.
#
#   tests/setup/docker.sh [--check] [20.10 | 28 | 29]...     --check: only say (by exit status) whether they are there
#
# Rule: made once, kept below LAB_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/cni-lab); packages come from where apt
# gets this machine's own. A release that the newest suite does not have any more is left out, and said.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh
# shellcheck source=tests/setup/go.sh
. tests/setup/go.sh

# what dockerd is linked with, or starts
LIBRARIES=(libdevmapper1.02.1 libsystemd0 runc)
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
DOCKERD=v2.0.0-beta.24
MODULE=github.com/moby/moby/v2
RUNC=v1.3.4
NEWEST=$LAB_CACHE/docker-29

check=
if [ "${1:-}" = --check ]; then check=1 && shift; fi
[ $# != 0 ] || set -- 20.10
there() {
  case $1 in
    29) built "$NEWEST/dockerd" "$DOCKERD" && built "$NEWEST/runc" "$RUNC" ;;
    *) [ -x "$LAB_CACHE/docker-$1/usr/sbin/dockerd" ] && [ -x "$LAB_CACHE/docker-$1/usr/bin/containerd" ] ;;
  esac
}

if [ -n "$check" ]; then
  debian_missing "${LIBRARIES[@]}" >/dev/null
  for release; do there "$release" || exit 1; done
  exit
fi
debian_install "${LIBRARIES[@]}"
mkdir -p "$LAB_CACHE"
exec 9>"$LAB_CACHE/docker.lock"
flock 9
scratch=$(mktemp -d "$LAB_CACHE/docker.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"

# newest ARGUMENT...: apt-get with the lists of Debian's newest suite, which are not this machine's
newest() {
  apt-get -q -o Dir::Etc::sourcelist="$scratch/newest/sources" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$scratch/newest/lists" -o Dir::Cache="$scratch/newest/cache" \
    -o Acquire::Languages=none "$@" >"$scratch/log" 2>&1 || { tail -n 5 "$scratch/log" >&2; return 1; }
}

unpack() { # release
  for package in "$scratch/$1"/*.deb; do dpkg-deb -x "$package" "$scratch/$1/tree"; done
  rm -rf "$scratch/$1/tree/usr/share" "$scratch/$1/tree/usr/sbin/runc" "$LAB_CACHE/docker-$1"
  mv "$scratch/$1/tree" "$LAB_CACHE/docker-$1"
}

for release; do
  if there "$release"; then continue; fi
  echo "fetching Docker $release"
  mkdir -p "$scratch/$release"
  case $release in
    20.10)
      (cd "$scratch/$release" && { apt-get -q download docker.io containerd >log 2>&1 ||
        { debian_apt update && apt-get -q download docker.io containerd >log 2>&1; } || { tail -n 5 log >&2; exit 1; }; })
      unpack 20.10
      ;;
    28)
      mkdir -p "$scratch"/newest/{lists,cache}/partial "$scratch/newest/cache/archives/partial"
      # shellcheck disable=SC2016 # apt's own placeholders
      mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }')
      echo "deb [signed-by=$KEYRING] $mirror sid main" >"$scratch/newest/sources"
      newest update
      policy=$(apt-cache -o Dir::Etc::sourcelist="$scratch/newest/sources" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$scratch/newest/lists" -o Dir::Cache="$scratch/newest/cache" policy docker.io)
      if ! grep -q 'Candidate: 28\.' <<<"$policy"; then
        echo "Debian's newest suite has another Docker than 28: its tests are skipped" >&2
        continue
      fi
      (cd "$scratch/28" && newest download docker.io docker-cli containerd docker-compose)
      unpack 28
      ;;
    29)
      GO_MINIMUM=1.26.3 # dockerd's own
      find_go
      debian_install gcc libc6-dev
      dir=$(module "$NEWEST/runc" "$RUNC" github.com/opencontainers/runc </dev/null)
      (cd "$dir" && GOTOOLCHAIN=local GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=1 nice "$GO" build -mod=mod \
        -trimpath -ldflags "-s -w" -o "$NEWEST/runc" github.com/opencontainers/runc)
      echo "$RUNC" >"$LAB_CACHE/mod/runc.version"
      rm -rf "$dir"
      dir=$(module "$NEWEST/dockerd" "$DOCKERD" "$MODULE" </dev/null)
      compile "$NEWEST/dockerd" "$DOCKERD" "$dir" "$MODULE/cmd/dockerd" "-X $MODULE/dockerversion.Version=29.0.0"
      rm -rf "$dir"
      ;;
  esac
done
