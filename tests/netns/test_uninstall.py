"""``calicoctl node uninstall`` on hosts without systemd: what stays until it can go, and what is not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.etcd_process import Cluster, Member
from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT
from tests.netns.private_host import PrivateHost, private_host

pytestmark = [pytest.mark.netns, pytest.mark.takes(20)]

# as "node init" does before it starts calico-node
WRITE = """
import sys
from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.node.setup.options import parse_options
from cni_calico.ctl.node.setup.plan import SetupFacts, plan_files
from cni_calico.ctl.node.setup.written import read_written

options = parse_options(parse_arguments(["node", "init", *sys.argv[1:]]))
written = read_written()
for one in plan_files(options, SetupFacts("/opt/cni/bin", {}, "", has_bird=True)):
    written.write(one)
"""
KEPT = ("/etc/calico/calico-node.env", "/etc/calico/calicoctl.cfg", "/var/lib/calico/node-init.json")


@pytest.fixture
def host() -> Iterator[PrivateHost]:
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("host"))
        ns.do("link", "set", "lo", "up")
        yield stack.enter_context(private_host(ns))


def python(host: PrivateHost, *argv: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
    return host.run(sys.executable, *argv, check=check, env={"PYTHONPATH": str(ROOT), **environ})


def set_up(host: PrivateHost, *options: str) -> None:
    python(host, "-c", WRITE, *options)


def calicoctl(
    host: PrivateHost, *arguments: str, check: bool = True, **environ: str
) -> subprocess.CompletedProcess[str]:
    return python(host, "-m", "cni_calico.ctl.main", *arguments, check=check, **environ)


@pytest.mark.etcd
def test_the_records_go_once_etcd_is_back(host: PrivateHost, tmp_path: Path) -> None:
    url = "http://127.0.0.1:2379"
    member = Member("etcd", url, "http://127.0.0.1:2380", tmp_path, prefix=("nsenter", f"--net={host.ns.path}"))
    with Cluster((member,), tmp_path) as etcd:
        set_up(host, "--datastore", "etcd", "--endpoints", url, "--name", "web1")
        node = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "web1"}, "spec": {}}
        host.write("/etc/calico/web1.json", json.dumps(node))
        calicoctl(host, "apply", "-f", "/etc/calico/web1.json")
        host.run("rm", "/etc/calico/web1.json")
        member.stop()

        failed = calicoctl(host, "node", "uninstall", "--timeout", "3", check=False)
        assert failed.returncode == 1 and "not everything is gone: removed this node's records" in failed.stderr
        assert "run the same command again" in failed.stderr and all(host.exists(path) for path in KEPT)
        assert not host.exists("/etc/cni/net.d/10-calico.conflist")
        assert calicoctl(host, "node", "uninstall", "--timeout", "3", check=False).returncode == 1, "still"
        assert all(host.exists(path) for path in KEPT)

        member.start(etcd.initial)
        member.wait_serving()
        assert "nothing of Calico any more" in calicoctl(host, "node", "uninstall").stdout
        there = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": url}
        assert calicoctl(host, "get", "nodes", "-o", "name", **there).stdout == ""
        assert not any(host.exists(path) for path in (*KEPT, "/etc/calico", "/var/lib/calico"))


def test_what_was_changed_is_kept(host: PrivateHost) -> None:
    set_up(host, "--datastore", "local")
    env, network = "/etc/calico/calico-node.env", "/etc/cni/net.d/10-calico.conflist"
    texts = {path: host.read(path) + "\n" for path in (env, network)}
    for path, text in texts.items():
        host.write(path, text)
    said = calicoctl(host, "node", "uninstall").stdout
    for path, text in texts.items():
        assert f"kept {path}.changed: it was not as node init had written it\n" in said
        assert host.read(f"{path}.changed") == text and not host.exists(path)


def test_workloads_are_open_again(host: PrivateHost) -> None:
    """Where the boot table was loaded, and no agent came to take it away."""
    set_up(host, "--datastore", "local")
    python(host, "-m", "cni_calico.nodeagent.main", "-boot-table")
    assert "table inet calico-boot" in host.run("nft", "list", "ruleset").stdout
    assert "removed the boot table\n" in calicoctl(host, "node", "uninstall").stdout
    assert "calico" not in host.run("nft", "list", "ruleset").stdout


def with_routes_of_bird(host: PrivateHost) -> None:
    """To pods of another host, to the world, and our agent's."""
    ns = host.ns
    ns.do_all(
        "link add eth0 type veth peer name outside",
        "link set eth0 up",
        "link set outside up",
        "addr add 192.0.2.10/24 dev eth0",
        "route add default via 192.0.2.1 proto bird",
        "route add 203.0.113.0/24 via 192.0.2.1 proto bird",
        "route add 10.65.1.0/26 via 192.0.2.11 proto bird",
        "route add blackhole 10.65.2.0/26 proto bird",
        "route add blackhole 10.65.3.0/26 proto 80",
    )
    pool = {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "containers"}}
    host.write("/run/pool.json", json.dumps({**pool, "spec": {"cidr": "10.65.0.0/16"}}))
    calicoctl(host, "apply", "-f", "/run/pool.json")


def left(host: PrivateHost) -> set[str]:
    return {route["dst"] for route in host.ns.routes() if route["protocol"] in ("bird", "80")}


def test_routes_of_a_bird_that_is_not_ours_stay(host: PrivateHost) -> None:
    set_up(host, "--datastore", "local")
    with_routes_of_bird(host)
    host.write("/etc/calico/confd/config/bird.cfg", "# the host's own\n")
    calicoctl(host, "node", "uninstall")
    assert left(host) == {"default", "203.0.113.0/24", "10.65.1.0/26", "10.65.2.0/26"}
    assert host.read("/etc/calico/confd/config/bird.cfg") == "# the host's own\n"


def test_of_our_bird_goes_what_leads_to_pods(host: PrivateHost) -> None:
    set_up(host, "--datastore", "local", "--as", "64512")
    with_routes_of_bird(host)
    directory, ours = "/etc/bird", "# Written by calico-node. Changes are overwritten.\n"
    host.write(KEPT[0], f"{host.read(KEPT[0])}CALICO_BIRD_CONFIG_DIR={directory}\n")
    for name in ("bird.cfg", "bird_aggr.cfg", "next/bird.cfg", "refused/bird.cfg", "refused/reason.txt"):
        host.write(f"{directory}/{name}", ours)
    host.run("ln", "-s", "bird.cfg", f"{directory}/bird6.cfg")
    host.write(f"{directory}/envvars", "BIRD_RUN_USER=bird\n")
    host.write("/etc/calico/confd/custom/global.conf", "# of a user\n")
    said = calicoctl(host, "node", "uninstall").stdout
    assert left(host) == {"default", "203.0.113.0/24"}
    assert "left 2 routes of a BIRD" in said and "0.0.0.0/0 via 192.0.2.1 dev eth0" in said
    assert host.read("/etc/calico/confd/custom/global.conf") == "# of a user\n"
    found = set(host.run("find", directory, "!", "-type", "d").stdout.split())
    assert f"{directory}/envvars" in found and not {path for path in found if "/bird.cfg" in path or "reason" in path}
    assert not found & {f"{directory}/bird6.cfg", f"{directory}/bird_aggr.cfg"}
    assert not host.exists(f"{directory}/next") and not host.exists(f"{directory}/refused")
