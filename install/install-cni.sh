#!/bin/sh
# Puts the CNI plugin, its kubeconfig and its network configuration on the host of the container this runs in, and keeps
# running to copy renewed TLS assets (unless SLEEP=false). Runs as /install-cni.sh, or by any other name.
#
# The host's directories are mounted at /host/opt/cni/bin (or /host/secondary-bin-dir) and /host/etc/cni/net.d. The
# environment variables: docs/install.md.
set -eu
here=$(dirname "$(readlink -f "$0")")
for directory in "${CALICO_BUNDLE_DIR:-}" "$here" /opt/cni/bin; do
  if [ -n "$directory" ] && [ -x "$directory/calico-install" ]; then exec "$directory/calico-install" "$@"; fi
done
echo "install-cni.sh: cannot install: no executable 'calico-install' in $here or /opt/cni/bin" >&2
exit 1
