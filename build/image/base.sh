#!/bin/bash
# The lower layer of the image, as an archive: a small Debian 12 with the programs that calico-node starts (BIRD, nft,
# iptables, ipset).
#
#   build/image/base.sh [--check | --print]      --check: only report (by exit status) whether it exists
#                                                --print: only print its path
# Rule: made once for these packages, and kept; packages come from the same source as this machine's own.
# Settings: XDG_CACHE_HOME. Needs root, and debootstrap, which it installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/setup/debian.sh
. tests/setup/debian.sh

PACKAGES=bird2,nftables,iptables,ipset,iproute2,kmod
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cni-calico
ARCHIVE=$CACHE/image-base-$(sha256sum build/image/base.sh | cut -c 1-8).tar.gz

case ${1:-} in
  --print)
    echo "$ARCHIVE"
    exit
    ;;
  --check)
    [ -f "$ARCHIVE" ]
    exit
    ;;
esac
mkdir -p "$CACHE"
exec 9>"$CACHE/image-base.lock"
flock 9
[ ! -f "$ARCHIVE" ] || exit 0
debian_install debootstrap
scratch=$(mktemp -d "$CACHE/image-base.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2016 # apt's own placeholders
mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
  awk '$1 == "Debian" && $2 == "main" && $3 !~ /security/ { print $3; exit }')
echo "making the lower layer of the image"
if ! debootstrap --variant=minbase "--include=$PACKAGES" bookworm "$scratch/tree" ${mirror:+"$mirror"} >"$scratch/log" 2>&1; then
  tail -n 5 "$scratch/log" >&2
  exit 1
fi
# no package is installed and no manual read in there; licences stay
find "$scratch/tree/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$scratch"/tree/{usr/share/{man,locale,info,i18n,zoneinfo,perl},usr/lib/udev,usr/lib/*/perl-base,usr/bin/perl*} \
  "$scratch"/tree/{var/cache/apt,var/lib/apt,var/cache/debconf,var/log}/* "$scratch"/tree/etc/{resolv.conf,hostname,bird/*}
# what depends on the day: when passwords were changed last, and the linker's notes on the files it saw
sed -i 's/^\([^:]*:[^:]*\):[0-9]*:/\1:18262:/' "$scratch"/tree/etc/shadow{,-}
rm -f "$scratch"/tree/var/cache/ldconfig/aux-cache
tar -C "$scratch/tree" --sort=name --mtime=@0 --numeric-owner --exclude='./dev/*' -cf - . | gzip -n >"$scratch/archive"
mv "$scratch/archive" "$ARCHIVE"
# another checkout may still use its own
find "$CACHE" -maxdepth 1 -name 'image-base-*.tar.gz' ! -path "$ARCHIVE" -mtime +6 -delete
