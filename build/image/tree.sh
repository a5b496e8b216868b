#!/bin/bash
# What the image has beside the bundle itself: links and directories by the names of upstream's image.
#
#   build/image/tree.sh ROOT
set -euo pipefail
root=$1
mkdir -p "$root"
ln -s /opt/cni/bin/install-cni.sh "$root/install-cni.sh"
# only here, never in a bundle: on a host this name would hide the install of coreutils
mkdir -p "$root/opt/cni/bin"
ln -s calico-install "$root/opt/cni/bin/install"
# where manifests of upstream's images look for them
mkdir -p "$root/usr/bin"
for program in calico-node calicoctl calico-typha; do ln -s "/opt/cni/bin/$program" "$root/usr/bin/$program"; done
ln -s calicoctl "$root/usr/bin/kubectl-calico"
# the last as in images with one program for everything
for name in kube-controllers check-status wrapper calico; do
  ln -s /opt/cni/bin/calico-kube-controllers "$root/usr/bin/$name"
done
# for the controllers' health file, whichever user they run as
mkdir -m 1777 "$root/status"
# runit's names, as used by runbooks and manifests of upstream's image
mkdir -p "$root/usr/sbin" "$root/usr/local/bin" # /sbin is a link
script() { printf '#!/bin/sh\nexec /opt/cni/bin/calico-node %s\n' "$2" >"$root/$1" && chmod 755 "$root/$1"; }
script usr/sbin/start_runit run
script usr/local/bin/sv 'sv "$@"'
script usr/local/bin/restart-calico-confd 'sv restart confd'
for service in felix confd bird bird6 allocate-tunnel-addrs monitor-addresses monitor-token node-status-reporter \
  node-services cni; do
  mkdir -p "$root/etc/service/enabled/$service"
done
