#!/bin/bash
# Two pods on one node, from nothing: sets up, builds, and shows what the CNI plugin does.
#
#   ./demo.sh
#
# The "node" is a network namespace with an embedded datastore in a temporary directory, the pods are two more; nothing
# else of this machine is changed, and everything is removed at the end, also after Ctrl-C.
#
# What is installed, and stays: the Debian packages that are missing to build (tests/setup/python.sh lists them), Python
# packages in .venv here, and the executables in dist/bin here. Nothing goes into /opt/cni/bin, /etc or systemd.
set -euo pipefail
cd "$(dirname "$0")"

[ "$(id -u)" = 0 ] || { echo "demo.sh: needs root, to make network namespaces" >&2; exit 1; }
echo "demo.sh installs what is missing of: Debian packages to build with, Python packages (.venv), executables (dist/bin)."
tests/setup/python.sh --build
build/build.sh
BIN=$PWD/dist/bin

WORK=$(mktemp -d)
NODE=cct-demo-$$-node
PODS=(cct-demo-$$-pod1 cct-demo-$$-pod2)
clean() {
  trap '' INT TERM
  for namespace in "${PODS[@]}" "$NODE"; do
    if [ -e "/var/run/netns/$namespace" ]; then ip netns del "$namespace"; fi
  done
  rm -rf "$WORK"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title() { printf '\n== %s\n' "$*"; }
show() { # prints a command, shortened, and runs it
  local line=$*
  line=${line//"$BIN"\//}
  line=${line//"$WORK"\//}
  line=${line//"ip netns exec $NODE "/}
  printf '   $ %s\n' "${line//cct-demo-$$-/}"
  "$@" 2>&1 | sed 's/^/     /'
}
on_node() { ip netns exec "$NODE" "$@"; }

# where the plugin keeps locks and its own state: below the temporary directory instead of /var
export CALICO_RUN_DIR=$WORK/run CALICO_STATE_DIR=$WORK/lib
export DATASTORE_TYPE=local DATASTORE_PATH=$WORK/datastore.db
mkdir -p "$CALICO_RUN_DIR" "$CALICO_STATE_DIR"

title "A node and two empty pods: three network namespaces"
for namespace in "$NODE" "${PODS[@]}"; do
  ip netns add "$namespace"
  ip -n "$namespace" link set lo up
done
on_node sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip netns list | grep -o "cct-demo-$$-[a-z0-9]*" | sed "s/cct-demo-$$-/     /"

title "Pools of addresses, in an embedded datastore"
cat >"$WORK/pools.yaml" <<'POOLS'
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: demo-v4
spec:
  cidr: 10.77.0.0/16
  blockSize: 26
  nodeSelector: all()
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: demo-v6
spec:
  cidr: fd00:77::/112
  blockSize: 122
  nodeSelector: all()
POOLS
show "$BIN/calicoctl" apply -f "$WORK/pools.yaml"
show "$BIN/calicoctl" get ippool -o wide

title "The network, as a container runtime would read it from /etc/cni/net.d"
cat >"$WORK/demo.conf" <<CONF
{
  "cniVersion": "1.0.0", "name": "demo", "type": "calico",
  "datastore_type": "local", "datastore_path": "$DATASTORE_PATH",
  "nodename": "demo-node", "mtu": 1450,
  "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}
}
CONF
sed 's/^/     /' "$WORK/demo.conf"

cni() { # command, pod's number: what a runtime does
  ip netns exec "$NODE" env CNI_COMMAND="$1" CNI_CONTAINERID="pod$2-$$" CNI_IFNAME=eth0 CNI_PATH="$BIN" \
    CNI_NETNS="/var/run/netns/${PODS[$(($2 - 1))]}" "$BIN/calico" <"$WORK/demo.conf"
}
milliseconds() { echo $((($(date +%s%N) - $1) / 1000000)); }

ADDRESSES=()
for number in 1 2; do
  title "CNI ADD for pod$number"
  began=$(date +%s%N)
  if ! cni ADD "$number" >"$WORK/result"; then
    cat "$WORK/result" >&2
    exit 1
  fi
  echo "     (took $(milliseconds "$began") ms)"
  sed 's/^/     /' "$WORK/result"
  show ip -n "${PODS[$((number - 1))]}" -br addr show dev eth0
  ADDRESSES+=("$(ip -n "${PODS[$((number - 1))]}" -j -4 addr show dev eth0 | sed 's/.*"local":"\([0-9.]*\)".*/\1/')"
    "$(ip -n "${PODS[$((number - 1))]}" -j -6 addr show dev eth0 scope global | sed 's/.*"local":"\([0-9a-f:]*\)".*/\1/')")
done

title "Inside pod1: everything goes to a gateway that is always at the same address"
show ip -n "${PODS[0]}" route
show ip -n "${PODS[0]}" -6 route show default
show ip -n "${PODS[0]}" neigh

title "On the node: one route per address; every veth has the same MAC, ee:ee:ee:ee:ee:ee"
show ip -n "$NODE" route
show ip -n "$NODE" -br link show type veth

title "The pods reach one another"
show ip netns exec "${PODS[0]}" ping -c 2 -i 0.2 -W 2 -q "${ADDRESSES[2]}"
show ip netns exec "${PODS[1]}" ping -c 2 -i 0.2 -W 2 -q "${ADDRESSES[0]}"
show ip netns exec "${PODS[0]}" ping -c 2 -i 0.2 -W 2 -q "${ADDRESSES[3]}"

title "Who has which address"
show "$BIN/calicoctl" ipam show --show-blocks

title "CNI DEL for both, twice: what is gone is no error"
for number in 1 2 1 2; do cni DEL "$number"; done
show ip -n "$NODE" -br link show type veth
show "$BIN/calicoctl" ipam check

printf '\nDone.\n'
