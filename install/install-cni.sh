#!/bin/sh
# Puts the CNI plugin, its kubeconfig and its network configuration on the host of the container this runs in, and stays
# to copy renewed TLS assets (SLEEP=false: ends). Runs as /install-cni.sh, or by any other name.
#
# The host's directories are mounted at /host/opt/cni/bin (or /host/secondary-bin-dir) and /host/etc/cni/net.d. What the
# environment may say: docs/install.md.
set -eu
here=$(dirname "$(readlink -f "$0")")
for directory in "${CALICO_BUNDLE_DIR:-}" "$here" /opt/cni/bin; do
  if [ -n "$directory" ] && [ -x "$directory/install" ]; then exec "$directory/install" "$@"; fi
done
echo "install-cni.sh: cannot install: no executable 'install' in $here or /opt/cni/bin" >&2
exit 1
