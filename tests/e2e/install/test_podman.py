"""docs/podman.md on a fresh host: real podman, the installed bundle, the agent, and nothing left afterwards."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from cni_calico.model.identity import OWN
from tests.conftest import ROOT
from tests.e2e.install.front_policy import FRONT_POLICY

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.takes(20)]

# In mount and network namespaces of its own; the veth is the host's uplink. Limits are named because a container cannot
# be given higher ones than this process has.
HOST = r"""
set -eu
mount --make-rprivate /
umount /sys/fs/cgroup/unified 2>/dev/null || :  # with both hierarchies crun starts nothing
mount -t tmpfs none /mnt
for d in etc opt var; do  # directories that are made to mount something on them are not made on the machine itself
  mkdir -p /mnt/$d/upper /mnt/$d/work
  mount -t overlay overlay -o lowerdir=/$d,upperdir=/mnt/$d/upper,workdir=/mnt/$d/work /$d
done
for d in /var/lib/containers /var/cache/containers /etc/cni /run /var/lib/calico /etc/calico /var/log /opt/cni; do
  mkdir -p $d; mount -t tmpfs none $d
done
mkdir -p /run/netns /run/lock /run/image/bin
ip link set lo up
ip link add up0 type veth peer name up1
ip link set up1 up; ip link set up0 up
ip addr add 192.0.2.10/24 dev up0; ip route add default via 192.0.2.1
echo 1 >/proc/sys/net/ipv4/ip_forward
build/install-bundle.sh "$BUNDLE" /opt/cni/bin
install -D -m 0600 install/systemd/calico-node.env /etc/calico/calico-node.env
cp "$CONFLIST" /run/conflist; cp "$POLICY" /run/policy
set -a; . /etc/calico/calico-node.env; set +a
/opt/cni/bin/calico-node run >/run/agent.log 2>&1 & agent=$!
trap 'kill $agent; wait $agent || :' EXIT
for i in $(seq 200); do /opt/cni/bin/calico-node -felix-live -felix-ready 2>/dev/null && break; sleep 0.2; done
install -D -m 0644 /run/conflist /etc/cni/net.d/10-calico.conflist
cp /bin/busybox /run/image/bin/
for c in sh ip wget httpd sleep; do ln -s busybox /run/image/bin/$c; done
printf '#!/bin/sh\nsleep 600\n' >/run/image/inner; chmod 755 /run/image/inner
tar -C /run/image -c . | podman import - box >/dev/null 2>&1
run() { podman run --network calico --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"; }
say() { printf '%s %s\n' "$1" "$(echo "$2" | tr '\n' ' ')"; }
say backend "$(podman info 2>/dev/null | grep networkBackend)"
run -d --name web --label role=front -p 8080:80 box sh -c 'echo hello >/index.html; httpd -f -p 80 -h /' >/dev/null
address_of() { podman inspect -f '{{.NetworkSettings.Networks.calico.IPAddress}}' "$1"; }
address=$(address_of web)
say address "$address"
say inside "$(run --rm box wget -q -O - "http://$address/")"
say published "$(busybox wget -q -O - http://192.0.2.10:8080/)"
say chosen "$(run --rm --ip 192.168.10.5 box ip -o -4 addr show eth0)"
say endpoints "$(/opt/cni/bin/calicoctl get workloadendpoints 2>&1)"
say labels "$(/opt/cni/bin/calicoctl get workloadendpoints -o json)"
podman rename web site
for i in $(seq 100); do /opt/cni/bin/calicoctl get workloadendpoints | grep -q '^site ' && break; sleep 0.2; done
say renamed "$(/opt/cni/bin/calicoctl get workloadendpoints)"
say explained "$(/opt/cni/bin/calicoctl policy show site)"
podman rename site web
for i in $(seq 100); do /opt/cni/bin/calicoctl get workloadendpoints | grep -q '^web ' && break; sleep 0.2; done
shop="--infra-image localhost/box --infra-command /inner"  # podman's own image cannot be fetched here
podman pod create --name shop --network calico $shop --infra-name shop-infra >/dev/null
podman run -d --pod shop --name till --label com.docker.compose.project=market --label com.docker.compose.service=till \
  --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 box sleep 600 >/dev/null
run -d --name client --label com.docker.compose.project=market --label com.docker.compose.service=client box \
  sleep 600 >/dev/null
say pods "$(/opt/cni/bin/calicoctl get workloadendpoints -o json)"
/opt/cni/bin/calicoctl apply -f /run/policy >/dev/null
serve='echo hello >/index.html; httpd -f -p 81 -h / & httpd -f -p 80 -h /'
inside="nsenter --net=/proc/$(podman inspect -f '{{.State.Pid}}' client)/ns/net"
# busybox's wget ends with a signal when it is given a time itself
fetch() { timeout "$2" $inside busybox wget -q -O - "http://$(address_of web):$1/" 2>/dev/null || echo closed; }
reached() {
  for i in $(seq 100); do [ "$(fetch 81 5)" = hello ] && break; sleep 0.1; done
  echo "$(fetch 80 1) $(fetch 81 5)"
}
again() { run -d --name web --label role=front box sh -c "$serve" >/dev/null; }
podman rm -f -t 0 web >/dev/null; again
say anew "$(reached)"
podman restart -t 0 web >/dev/null
say restarted "$(reached)"
podman rm -f -t 0 web >/dev/null; run -d --name web box sh -c "$serve" >/dev/null
say unlabelled "$(reached)"
podman pod rm -f -t 0 shop >/dev/null; podman rm -f -t 0 client >/dev/null
say status "$(/opt/cni/bin/calicoctl node status >/dev/null 2>&1; echo $?)"
say used "$(/opt/cni/bin/calicoctl ipam show -o json)"
podman rm -f -t 0 web >/dev/null
say free "$(/opt/cni/bin/calicoctl ipam show -o json)"
say check "$(/opt/cni/bin/calicoctl ipam check)"
say links "$(ip -o link | grep -c ' cali' || :)"
say log "$(grep -c ' ms$' /run/agent.log)"
"""


def conflist() -> str:
    """The network configuration that docs/hosts.md has people write."""
    (text,) = re.findall(r"10-calico\.conflist <<'END'\n(.*?)\nEND\n", (ROOT / "docs" / "hosts.md").read_text(), re.S)
    json.loads(text)
    return str(text)


def test_a_host_with_podman(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "conflist").write_text(conflist())
    (tmp_path / "policy").write_text(json.dumps(FRONT_POLICY))
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BUNDLE": str(bundle), "CONFLIST": str(tmp_path / "conflist")}
    environ["POLICY"] = str(tmp_path / "policy")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", HOST]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["backend"].split()[-1] == "cni"
    address = said["address"].strip()
    assert re.fullmatch(r"192\.168\.\d+\.\d+", address)
    assert said["inside"].strip() == said["published"].strip() == "hello"
    assert " 192.168.10.5/32 " in said["chosen"]
    assert re.search(rf"\bweb +\S+ +{address}/32 ", said["endpoints"]), said["endpoints"]
    (endpoint,) = json.loads(said["labels"])["items"]
    labels = {"cni-calico.io/container": "web", "cni-calico.io/network": "calico", f"{OWN}role": "front"}
    assert labels.items() <= endpoint["metadata"]["labels"].items()
    assert re.search(rf"\bsite +\S+ +{address}/32 ", said["renamed"]), said["renamed"]
    assert "default/site on " in said["explained"]
    by_name = {one["metadata"]["labels"]["cni-calico.io/container"]: one for one in json.loads(said["pods"])["items"]}
    assert set(by_name) == {"web", "shop-infra", "client"}, "a pod has one endpoint, its infra container's"
    assert by_name["shop-infra"]["metadata"]["labels"]["cni-calico.io/pod"] == "shop"
    client = by_name["client"]["metadata"]["labels"]
    assert (client["cni-calico.io/compose-project"], client["cni-calico.io/compose-service"]) == ("market", "client")
    assert [said[start].split() for start in ("anew", "restarted", "unlabelled")] == [
        ["closed", "hello"],
        ["closed", "hello"],
        ["hello", "hello"],
    ]
    assert said["status"].strip() == "0"
    assert [pool["used"] for pool in json.loads(said["used"])["pools"]] == [1]
    assert [pool["used"] for pool in json.loads(said["free"])["pools"]] == [0]
    assert "found 0 problems" in said["check"]
    assert said["links"].strip() == "0"
    assert int(said["log"]) == 16  # an ADD and a DEL each of three containers, then of a pod, a client and three starts
