#!/bin/bash
# Runs in a machine of tests/kernels that has a release's tarball as /product: installs it on this bare host, makes a pool,
# connects two pods, lets them ping one another, and takes everything away again.
set -euo pipefail
rm -f /opt/cni/bin # of the machine, for sources
./install-bundle.sh bin /opt/cni/bin
export PATH=/opt/cni/bin:$PATH DATASTORE_TYPE=local DATASTORE_PATH=/var/lib/calico/datastore.db
mkdir -p /var/lib/calico
echo "processor: $(uname -m)"
calicoctl version --client
for name in plugins/*; do echo "plugin: $("$name" 2>&1)"; done
calicoctl apply -f - <<'END'
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: pods
spec:
  cidr: 10.77.0.0/16
  blockSize: 26
END
cat >/network.conf <<END
{"cniVersion": "1.0.0", "name": "pods", "type": "calico", "datastore_type": "local", "datastore_path": "$DATASTORE_PATH",
 "nodename": "machine", "ipam": {"type": "calico-ipam"}}
END
cni() { # verb, pod
  CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin calico </network.conf
}
echo "VERSION: $(cni VERSION a)"
sysctl -qw net.ipv4.ip_forward=1
for pod in a b; do
  ip netns add "$pod"
  cni ADD "$pod" >"/results/$pod.json"
  ip -n "$pod" -br addr show dev eth0
done
address() { ip -n "$1" -br -4 addr show dev eth0 | awk '{ sub("/.*", "", $3); print $3 }'; }
ip netns exec a ping -c 3 -W 5 "$(address b)"
ip netns exec b ping -c 3 -W 5 "$(address a)"
calicoctl ipam show --show-blocks
for pod in a b; do cni DEL "$pod"; done
ip -br link show type veth
calicoctl ipam check
echo "afterwards:"
calicoctl ipam show
calicoctl ipam show --show-blocks
