#!/bin/bash
# The lower layer of the image, as an archive: a small Debian 12 with the programs that calico-node starts (BIRD, nft,
# iptables, ipset), with the updates and security updates of this week.
#
#   build/image/base.sh [--check | --print | --sources]   --check: only report (by exit status) whether it exists
#                                                         --print: only print its path
#                                                         --sources: only print where its packages come from
# Rule: made once a week for these packages, and kept; packages come from the same mirrors as this machine's own. Beside
# the archive, NAME.lists.tar.gz has what apt knew when it was made.
# Settings: XDG_CACHE_HOME. Needs root, and mmdebstrap, which it installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

RELEASE=bookworm
PACKAGES=bird2,nftables,iptables,ipset,iproute2,kmod
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
NAME=$CACHE/image-base-$(sha256sum build/image/base.sh | cut -c 1-8)-$(date -u +%G-W%V)
ARCHIVE=$NAME.tar.gz
LISTS=$NAME.lists.tar.gz

# where this machine's apt has each suite from
sources() {
  local known suite address
  # shellcheck disable=SC2016 # apt's own placeholders
  known=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(CODENAME) $(REPO_URI)' 'Created-By: Packages')
  for suite in "$RELEASE" "$RELEASE-updates" "$RELEASE-security"; do
    address=$(awk -v suite="$suite" '$1 == "Debian" && $2 == "main" && $3 == suite { print $4; exit }' <<<"$known")
    if [ -z "$address" ]; then
      echo "cannot make the image's base: apt on this machine has no mirror of Debian's suite $suite, from which its" \
        "packages would come; name one in /etc/apt/sources.list and run apt-get update" >&2
      return 1
    fi
    echo "deb [signed-by=$KEYRING] $address $suite main"
  done
}

case ${1:-} in
  --print)
    echo "$ARCHIVE"
    exit
    ;;
  --check)
    [ -f "$ARCHIVE" ] && [ -f "$LISTS" ]
    exit
    ;;
  --sources)
    sources
    exit
    ;;
esac
mkdir -p "$CACHE"
exec 9>"$CACHE/image-base.lock"
flock 9
if [ -f "$ARCHIVE" ] && [ -f "$LISTS" ]; then exit 0; fi
listed=$(sources)
debian_install mmdebstrap debian-archive-keyring
scratch=$(mktemp -d "$CACHE/image-base.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
echo "making the lower layer of the image"
# in a mount namespace of its own: what it mounts ends with it, however it ends
if ! unshare --mount mmdebstrap --mode=root --variant=minbase "--include=$PACKAGES" --aptopt='Acquire::Languages "none"' \
  --skip=cleanup/apt/lists --skip=cleanup/tmp --format=directory "$RELEASE" "$scratch/tree" - <<<"$listed" >"$scratch/log" 2>&1; then
  tail -n 5 "$scratch/log" >&2
  exit 1
fi
tar -C "$scratch/tree/var/lib/apt/lists" --exclude=./lock --exclude=./partial --exclude=./auxfiles -czf "$scratch/lists" .
# no package is installed and no manual read in there; licences stay
find "$scratch/tree/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$scratch"/tree/{usr/share/{man,locale,info,i18n,zoneinfo,perl},usr/lib/udev,usr/lib/*/perl-base,usr/bin/perl*} \
  "$scratch"/tree/{tmp,var/cache/apt,var/lib/apt,var/cache/debconf,var/log}/* \
  "$scratch"/tree/etc/{resolv.conf,hostname,machine-id,apt/sources.list,apt/apt.conf.d/99mmdebstrap,bird/*}
# what depends on the day: when passwords were changed last, and the linker's notes on the files it saw
sed -i 's/^\([^:]*:[^:]*\):[0-9]*:/\1:18262:/' "$scratch"/tree/etc/shadow{,-}
rm -f "$scratch"/tree/var/cache/ldconfig/aux-cache
tar -C "$scratch/tree" --sort=name --mtime=@0 --numeric-owner --exclude='./dev/*' -cf - . | gzip -n >"$scratch/archive"
mv "$scratch/lists" "$LISTS"
mv "$scratch/archive" "$ARCHIVE"
# another checkout may still use its own
find "$CACHE" -maxdepth 1 -name 'image-base-*.tar.gz' ! -path "$NAME.*" -mtime +6 -delete
