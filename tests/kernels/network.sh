#!/bin/bash
# Runs in a machine of tests/kernels that has a release's tarball as /product: installs it on this bare host, makes a pool,
# connects two pods, lets them ping one another, forbids it by a policy, and takes everything away again. It waits for what
# should become true; the machine's own limit ends it.
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
calicoctl ipam show

pings() { ip netns exec a ping -c 1 -W 1 "$(address b)" >/dev/null; }
NODENAME=machine IP=none CALICO_NETWORKING_BACKEND=none NO_DEFAULT_POOLS=true calico-node run >/results/agent 2>&1 &
agent=$!
until calicoctl node status 2>/dev/null | grep '^Policy: ' >/dev/null; do sleep 1; done
calicoctl apply -f - <<'END'
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata:
  name: no-pings
spec:
  types: [Ingress]
  ingress:
  - {action: Deny, protocol: ICMP}
  - {action: Allow}
END
while pings; do sleep 1; done
echo "policy: pings are denied"
nft list table ip calico-policy >/results/rules
calicoctl delete globalnetworkpolicy no-pings
until pings; do sleep 1; done
echo "policy: gone, and pings pass"
kill "$agent"
wait "$agent"

for pod in a b; do cni DEL "$pod"; done
echo "afterwards:"
ip -br link show type veth
calicoctl ipam check >/results/check
calicoctl ipam show
