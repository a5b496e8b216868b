"""``calicoctl node init`` where podman has netavark: judged before anything is written.

Rule: podman is a stand-in, because Debian 12 has only one: it says what other releases say, and keeps its networks in
files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT
from tests.netns.private_host import PrivateHost, private_host

pytestmark = [pytest.mark.netns, pytest.mark.takes(15)]

NETWORKS, CONTAINERS = "/var/lib/networks", "/var/lib/containers.txt"
PODMAN = f"""#!/bin/sh
case "$1 $2" in
"info --format") cat /var/lib/info.json ;;
"network exists") [ -e "{NETWORKS}/$3" ] ;;
"network inspect") cat "{NETWORKS}/$3" ;;
"ps --all") cat {CONTAINERS} 2>/dev/null || : ;;
"network rm") rm "{NETWORKS}/$3" ;;
"network create") shift 2; exec {sys.executable} /var/lib/create.py "$@" ;;
*) echo "podman $*" >&2; exit 125 ;;
esac
"""
CREATE = f"""
import json, os, sys
*words, name = sys.argv[1:]
options = dict(word.split("=", 1) for flag, word in zip(words, words[1:]) if flag == "-o")
driver = words[words.index("--driver") + 1]
os.makedirs("{NETWORKS}", exist_ok=True)
with open(f"{NETWORKS}/{{name}}", "x") as file:
    json.dump([dict(name=name, driver=driver, options=options, ipv6_enabled="--ipv6" in words)], file)
"""
ENSURE = """
import sys
from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.node.init import _add_network, _plan_network
from cni_calico.ctl.node.setup.options import parse_options
from cni_calico.ctl.node.setup.written import read_written

options = parse_options(parse_arguments(["node", "init", *sys.argv[1:]]))
written = read_written()
_add_network(options, written, _plan_network(options, written))
"""
LOCAL = ("--datastore", "local")
ETCD = ("--datastore", "etcd", "--endpoints", "http://192.0.2.7:2379")


@pytest.fixture
def netavark_host() -> Iterator[PrivateHost]:
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("host"))
        made = stack.enter_context(private_host(ns))
        made.write("/usr/local/sbin/podman", PODMAN, mode="0755")
        made.write("/var/lib/create.py", CREATE)
        for name in ("calico", "calico-node", "calicoctl"):
            made.write(f"/opt/cni/bin/{name}", "", mode="0755")
        has(made, "5.4.2", "netavark 1.14.0")
        yield made


def has(host: PrivateHost, podman: str, netavark: str) -> None:
    info = {"networkBackend": "netavark", "networkBackendInfo": {"version": netavark} if netavark else None}
    host.write("/var/lib/info.json", json.dumps({"host": info, "version": {"Version": podman}}))


def shown(host: PrivateHost, *options: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "cni_calico.ctl.main", "node", "init", *options, "--dry-run"]
    done = host.run(*argv, check=False, env={"PYTHONPATH": str(ROOT)})
    return done.returncode, done.stdout, done.stderr


def ensured(host: PrivateHost, *options: str) -> tuple[int, dict[str, str]]:
    done = host.run(sys.executable, "-c", ENSURE, *options, check=False, env={"PYTHONPATH": str(ROOT)})
    (network,) = json.loads(host.read(f"{NETWORKS}/calico"))
    return done.returncode, network["options"]


def test_the_podman_of_debian_12_is_refused_before_anything_is_written(netavark_host: PrivateHost) -> None:
    host = netavark_host
    has(host, "4.3.1", "")
    status, out, err = shown(host, *LOCAL)
    assert (status, out) == (1, "") and "podman 4.3.1, and 4.4 is the first" in err and 'network_backend = "cni"' in err
    status, out, err = shown(host, *LOCAL, "--force")
    assert (status, err) == (0, "") and "netavark" not in out and "podman network" not in out


def test_the_network_follows_the_datastore(netavark_host: PrivateHost) -> None:
    host = netavark_host
    assert "podman network create --driver calico -o datastore_type=local" in shown(host, *LOCAL)[1]
    assert ensured(host, *LOCAL) == (0, {"datastore_type": "local", "profile_ingress": "anyone"})
    assert "keep podman network calico" in shown(host, *LOCAL)[1]
    assert (
        "podman network rm calico\npodman network create --driver calico -o datastore_type=etcdv3"
        in shown(host, *ETCD)[1]
    )
    status, options = ensured(host, *ETCD, "--name", "web1")
    assert (status, options["datastore_type"], options["nodename"]) == (0, "etcdv3", "web1")
    host.write(CONTAINERS, "web\n")
    status, _, err = shown(host, *LOCAL)
    assert status == 1 and "containers use it: web" in err
    assert ensured(host, *LOCAL) == (1, options), "nothing is changed"


def test_somebody_elses_network_is_refused(netavark_host: PrivateHost) -> None:
    host = netavark_host
    host.run("podman", "network", "create", "--driver", "bridge", "calico")
    status, _, err = shown(host, *LOCAL)
    assert status == 1 and "podman has a network calico with another driver" in err and "network rm calico" in err
    assert ensured(host, *LOCAL) == (1, {})
