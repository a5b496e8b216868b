#!/bin/bash
# The image that the manifests name, as an OCI archive: a small Debian 12 with BIRD, nft, iptables and ipset, the bundle, and
# the reference plugins that network configurations chain.
#
#   build/image/build.sh [OUT.tar]            (default dist/image.tar)
#
# Load it with `ctr -n k8s.io images import OUT.tar`, `podman load -i OUT.tar` or `docker load -i OUT.tar`, or copy it to
# your own registry with skopeo. Making it needs no container tool and no registry.
#
# Settings: IMAGE        its name (default: the one in manifests/calico.yaml)
#           ARCH         Debian's name of the processor (default: this machine's)
#           CNI_PLUGINS  a directory of plugins to install on nodes beside ours, in the place of those that
#                        build/image/plugins.sh builds (bandwidth, host-local, loopback, portmap, tuning)
#           LOWER        an archive to use as the lower layer (default: build/image/lower.sh makes it)
#           BUNDLE       a directory with the executables (default: dist/bin, built first)
#           DOCUMENTS    files for /usr/share/doc/cni-calico of the image, beside LICENSE, separated by spaces
#           LABELS       lines NAME=TEXT that describe the image
#           KUBE_CONTROLLERS  a file for a second image of the same contents that runs the controllers by itself, as
#                        upstream's Deployments expect it: as user 999, and also when they say only "component
#                        kube-controllers"
set -euo pipefail
case ${1:-} in "" | /*) out=${1:-} ;; *) out=$PWD/$1 ;; esac
cd "$(dirname "$0")/../.."
out=${out:-dist/image.tar}
image=${IMAGE:-$(sed -n 's/^ *image: *//p' manifests/calico.yaml | head -n 1)}
# our own directory last: it has a program called install
search_path=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cni/bin
arch=${ARCH:-$(dpkg --print-architecture)}
if [ -z "${BUNDLE:-}" ]; then build/build.sh; fi
plugins=${CNI_PLUGINS:-}
if [ -z "$plugins" ]; then
  build/image/plugins.sh "$arch"
  plugins=$(build/image/plugins.sh "$arch" --print)/bin
fi
lower=${LOWER:-}
if [ -z "$lower" ]; then
  build/image/lower.sh "$arch"
  lower=$(build/image/lower.sh "$arch" --print)
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
bin=$root/opt/cni/bin
mkdir -p "$bin"
# unchanged: it gets its paths when it is installed from there
build/install-bundle.sh --plain "${BUNDLE:-dist/bin}" "$bin"
cp build/install-bundle.sh install/install-cni.sh conflist/10-calico.conflist.template "$bin"
build/image/tree.sh "$root"
for plugin in "$plugins"/*; do
  [ -e "$bin/${plugin##*/}" ] || cp "$plugin" "$bin"
done
for file in LICENSE ${DOCUMENTS:-}; do
  install -D -m 0644 "$file" "$root/usr/share/doc/cni-calico/${file##*/}"
done
labels=()
while read -r label; do
  if [ -n "$label" ]; then labels+=(--label "$label"); fi
done <<<"${LABELS:-}"
if [ -d "${plugins%/bin}/licences" ]; then
  cp -R "${plugins%/bin}/licences" "$root/usr/share/doc/cni-calico/plugins"
fi
mkdir -p "${out%/*}"
.venv/bin/python build/image/archive.py "$out" --name "$image" --arch "$arch" --layer "$lower" --tree "$root" \
  "${labels[@]}" --env "$search_path" --command /opt/cni/bin/calico-node run
echo "made $image: $out"
if [ -n "${KUBE_CONTROLLERS:-}" ]; then
  controllers=${image/node:/kube-controllers:}
  .venv/bin/python build/image/archive.py "$KUBE_CONTROLLERS" --name "$controllers" --arch "$arch" \
    --layer "$lower" --tree "$root" \
    "${labels[@]}" --env "$search_path" \
    --user 999 --entrypoint /usr/bin/wrapper /usr/bin/kube-controllers
  echo "made $controllers: $KUBE_CONTROLLERS"
fi
