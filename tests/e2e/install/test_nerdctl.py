"""docs/nerdctl.md on a fresh host: real nerdctl and containerd, the installed bundle, the agent, and nothing left."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from cni_calico.model.identity import OWN
from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.install.test_podman import conflist
from tests.lab.images import BUSYBOX, make_busybox

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.nerdctl, pytest.mark.slow]

# In mount and network namespaces of its own; the veth is the host's uplink.
HOST = r"""
set -eu
mount --make-rprivate /
for d in /var/lib/{nerdctl,containerd,calico} /etc/{cni,containerd,calico} /run /var/log /opt/cni; do
  mkdir -p $d; mount -t tmpfs none $d
done
mkdir -p /run/netns /run/lock
ip link set lo up
ip link add up0 type veth peer name up1
ip link set up1 up; ip link set up0 up
ip addr add 192.0.2.10/24 dev up0; ip route add default via 192.0.2.1
echo 1 >/proc/sys/net/ipv4/ip_forward
build/install-bundle.sh "$BUNDLE" /opt/cni/bin
cp /usr/lib/cni/* /opt/cni/bin/ 2>/dev/null || :
install -D -m 0600 install/systemd/calico-node.env /etc/calico/calico-node.env
set -a; . /etc/calico/calico-node.env; set +a
/opt/cni/bin/calico-node run >/run/agent.log 2>&1 & agent=$!
containerd >/run/containerd.log 2>&1 & daemon=$!
trap 'nerdctl rm -f web >/dev/null 2>&1 || :; kill $agent $daemon; wait $agent $daemon || :' EXIT
for i in $(seq 200); do /opt/cni/bin/calico-node -felix-live -felix-ready 2>/dev/null && break; sleep 0.2; done
for i in $(seq 200); do nerdctl info >/dev/null 2>&1 && break; sleep 0.2; done
install -D -m 0644 "$CONFLIST" /etc/cni/net.d/10-calico.conflist
nerdctl load -i "$IMAGE" >/dev/null
run() { nerdctl --cgroup-manager cgroupfs run --network calico --pull never "$@"; }
say() { printf '%s %s\n' "$1" "$(echo "$2" | tr '\n' ' ')"; }
say networks "$(nerdctl network ls --format '{{.Name}}')"
serve='echo hello >/www/index.html; httpd -f -p 80 -h /www'
run -d --name web --label role=front -p 8080:80 "$BOX" sh -c "$serve" >/dev/null
address=$(nerdctl inspect -f '{{.NetworkSettings.IPAddress}}' web)
say address "$address"
say inside "$(run --rm "$BOX" wget -q -O - "http://$address/")"
say published "$(busybox wget -q -O - http://192.0.2.10:8080/)"
say endpoints "$(/opt/cni/bin/calicoctl get workloadendpoints 2>&1)"
say labels "$(/opt/cni/bin/calicoctl get workloadendpoints -o json)"
say status "$(/opt/cni/bin/calicoctl node status >/dev/null 2>&1; echo $?)"
nerdctl rm -f web >/dev/null
say log "$(grep -o 'ADD [0-9a-f]* eth0: web .*/32' /run/agent.log)"
say free "$(/opt/cni/bin/calicoctl ipam show -o json)"
say check "$(/opt/cni/bin/calicoctl ipam check)"
say links "$(ip -o link | grep -c ' cali' || :)"
"""


def test_a_host_with_nerdctl(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "conflist").write_text(conflist())
    programs = LAB_CACHE / "bin"
    environ = {
        "PATH": f"{programs}:{programs / 'containerd'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "BUNDLE": str(bundle),
        "CONFLIST": str(tmp_path / "conflist"),
        "IMAGE": str(make_busybox(tmp_path)),
        "BOX": BUSYBOX,
    }
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", HOST]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert "calico" in said["networks"].split()
    address = said["address"].strip()
    assert re.fullmatch(r"192\.168\.\d+\.\d+", address)
    assert said["inside"].strip() == said["published"].strip() == "hello"
    assert re.search(rf"\bweb +\S+ +{address}/32 ", said["endpoints"]), said["endpoints"]
    (endpoint,) = json.loads(said["labels"])["items"]
    labels = {"cni-calico.io/container": "web", "cni-calico.io/network": "calico", f"{OWN}role": "front"}
    assert labels.items() <= endpoint["metadata"]["labels"].items()
    assert re.fullmatch(rf"ADD [0-9a-f]{{13}} eth0: web {address}/32", said["log"].strip())
    assert said["status"].strip() == "0"
    assert [pool["used"] for pool in json.loads(said["free"])["pools"]] == [0]
    assert "found 0 problems" in said["check"]
    assert said["links"].strip() == "0"
