"""``calico-node -rehearse`` and ``calicoctl cluster rehearse`` on a node with upstream's rules, and then with ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.cluster.rehearse import render_answer
from cni_calico.model.keys import ResourceKey
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.policing.lab import DENY_B, Lab, lab
from tests.netns.test_takeover import listed, prepare, run_agent
from tests.netns.watched import Watched, run_watched

pytestmark = pytest.mark.netns


def environ_of(root: Path, **more: str) -> dict[str, str]:
    for name in ("run", "lib", "log"):
        (root / name).mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "NODENAME": "n1",
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": str(root / "store.db"),
        "CALICO_RUN_DIR": str(root / "run"),
        "CALICO_STATE_DIR": str(root / "lib"),
        "CALICO_LOG_DIR": str(root / "log"),
        "CALICO_BIRD_CONFIG_DIR": str(root / "bird"),
        "CALICO_NODENAME_FILE": str(root / "lib" / "nodename"),
        "CALICO_NETWORKING_BACKEND": "none",
        "FELIX_ENDPOINTSTATUSPATHPREFIX": str(root),
        "NO_DEFAULT_POOLS": "true",
        **more,
    }


def node_command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "cni_calico.nodeagent.main", *flags]


def watched(node: Lab, environ: dict[str, str]) -> tuple[Watched, dict[str, Any]]:
    found = run_watched(node_command("-rehearse"), environ, node.host.path, except_for=environ["DATASTORE_PATH"])
    return found, json.loads(found.output or b"{}")


def documented() -> str:
    """The example of docs/calicoctl.md."""
    text = (ROOT / "docs" / "calicoctl.md").read_text()
    begin = text.index("    $ calicoctl cluster rehearse --with /tmp/image\n")
    lines = text[begin : text.index("\nThe exit status is 0 if nothing would change", begin)].splitlines()[1:]
    return "\n".join(line.removeprefix("    ") for line in lines) + "\n"


def shortened(text: str) -> str:
    """Without the lines that the documentation leaves out: they are like one that it has."""
    like = re.compile("(accept_ra|route_localnet|proxy_delay|calib/proxy_arp) to|^  interfaces|sign interface")
    return "".join(line for line in text.splitlines(keepends=True) if not like.search(line))


def by_kind(document: dict[str, Any]) -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for change in document["changes"]:
        kinds.setdefault(change["kind"], []).append(change["what"])
    return kinds


def test_the_watcher_sees_every_kind_of_write(tmp_path: Path) -> None:
    with lab(tmp_path) as node:
        script = (
            f"cd {tmp_path}; echo x > made; mkdir d; mv made moved; ip link add x type veth; "
            "nft add table ip made; echo 1 > /proc/sys/net/ipv4/ip_forward; ip route add blackhole 10.9.9.9"
        )
        found = run_watched(["/bin/sh", "-c", script], dict(os.environ), node.host.path)
    said = "\n".join(found.writes)
    for each in (
        " made ",
        "mkdir",
        "rename",
        "message 0x10 ",
        "message 0xa00 ",
        "ip_forward",
        "message 0x18 ",
    ):
        assert each in said, said


def test_in_the_place_of_upstream(tmp_path: Path) -> None:
    environ = environ_of(tmp_path, FELIX_BPFLOGLEVEL="debug")
    with lab(tmp_path) as node:
        prepare(node)
        for address, interface in (("10.65.0.1", "calia"), ("10.65.0.2", "calib")):  # as upstream's agent leaves them
            node.host.do("route", "del", address)
            node.host.do("route", "add", address, "dev", interface, "metric", "1024")
        assert node.passes("b", "a", 4711)  # which conntrack remembers
        node.put("GlobalNetworkPolicy", "closed", {**DENY_B, "selector": "all()", "types": ["Ingress", "Egress"]})
        rules, records = listed(node), node.documents("FelixConfiguration")
        found, document = watched(node, environ)
        assert (found.status, found.writes, document["trouble"]) == (0, [], [])
        assert found.netlink > 20
        assert (listed(node), node.documents("FelixConfiguration")) == (rules, records)
        kinds = by_kind(document)
        assert "create ClusterInformation default" in kinds["records"]
        assert any(text.startswith("add table ip calico-policy") for text in kinds["tables"])
        assert "remove table arp calico-arp of upstream's agent" in kinds["others' rules"]
        assert any("calia/proxy_arp to 1" in text for text in kinds["settings"])
        assert document["settingsWithoutEffect"] == ["FELIX_BPFLOGLEVEL='debug': for the eBPF data plane, and XDP"]
        (denied,) = [one for one in document["denied"] if one["traffic"] == "udp/4711"]
        assert denied["from"].endswith("(10.65.0.2)") and denied["to"].endswith("(10.65.0.1)")
        assert denied["why"] == "ingress: rule 1 of GlobalNetworkPolicy closed"
        assert shortened(render_answer(document)) == documented()


UPSTREAMS_BIRD = """router id 192.0.2.10;
protocol device { }
protocol bgp Mesh_192_0_2_9 {
  local as 64512;
  neighbor 192.0.2.9 as 64512;
  ipv4 { };
}
"""


def test_pools_peers_and_routes_beside_upstream(tmp_path: Path) -> None:
    """Its BIRD has a session that the records have not, and its agent left a route of a pod that is gone."""
    environ = environ_of(tmp_path, CALICO_NETWORKING_BACKEND="bird", NO_DEFAULT_POOLS="", IP="192.0.2.10/24")
    environ |= {"CALICO_IPV4POOL_CIDR": "10.65.0.0/16", "CALICO_IPV4POOL_IPIP": "Never"}
    specs: dict[tuple[str, str], dict[str, Any]] = {
        ("Node", "n2"): {"bgp": {"ipv4Address": "192.0.2.2/24"}},
        ("BGPPeer", "rack"): {"peerIP": "192.0.2.254", "asNumber": 64513},
    }
    with lab(tmp_path) as node:
        prepare(node)
        for (kind, name), spec in specs.items():
            document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec}
            node.put_document(ResourceKey(kind, name), document)
        node.host.do("route", "add", "10.65.7.7", "dev", "calia", "proto", "80")
        (tmp_path / "bird.cfg").write_text(UPSTREAMS_BIRD)
        socket = tmp_path / "bird.ctl"
        command = ["nsenter", f"--net={node.host.path}", "bird", "-f", "-c", str(tmp_path / "bird.cfg")]
        with subprocess.Popen([*command, "-s", str(socket)]) as bird:
            try:
                until(socket.exists, "BIRD runs", 30)
                found, document = watched(node, environ)
            finally:
                bird.terminate()
        assert (found.status, found.writes, document["trouble"]) == (0, [], [])
        kinds = by_kind(document)
        assert [one for one in kinds["BIRD"] if "session" in one] == [
            "end the session with 192.0.2.9 (AS 64512)",
            "begin a session with 192.0.2.2 (AS 64512)",
            "begin a session with 192.0.2.254 (AS 64513)",
        ]
        assert "create IPPool default-ipv4-ippool" in kinds["records"]
        assert any(one.startswith("remove route 10.65.7.7/32") for one in kinds["routes"])
        answer = render_answer(document)
        assert all(one in answer for kind in ("records", "BIRD", "routes") for one in kinds[kind])


@pytest.mark.slow
def test_beside_an_agent_of_ours(tmp_path: Path) -> None:
    environ = environ_of(tmp_path)
    with lab(tmp_path) as node:
        prepare(node)
        started = subprocess.run(
            ["nsenter", f"--net={node.host.path}", *node_command("-startup")], env=environ, cwd=ROOT, timeout=120
        )
        assert started.returncode == 0
        pid = run_agent(node.host, tmp_path)
        try:
            until(lambda: "-cali-" not in listed(node), "upstream's rules are gone", 60)
            until(lambda: not changes_of(node, environ), "nothing would change", 60)
        finally:
            os.kill(pid, 15)
            os.waitpid(pid, 0)
        done = rehearse(node, tmp_path, environ)
        assert done.returncode == 0 and "would change nothing." in done.stdout, done.stdout

        node.put("GlobalNetworkPolicy", "closed", {**DENY_B, "order": 1, "selector": "all()"})
        node.host.do("route", "del", "10.65.0.1")
        done = rehearse(node, tmp_path, environ)
        assert done.returncode == 1
        assert "add route 10.65.0.1/32" in done.stdout and "table ip calico-policy: change" in done.stdout


def changes_of(node: Lab, environ: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["nsenter", f"--net={node.host.path}", *node_command("-rehearse")],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    return [change["what"] for change in json.loads(done.stdout)["changes"]]


def rehearse(node: Lab, root: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As a person does, with an unpacked image."""
    programs = root / "image" / "opt" / "cni" / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    program = programs / "calico-node"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cni_calico.nodeagent.main "$@"\n')
    program.chmod(0o755)
    settings = root / "calico-node.env"
    settings.write_text("".join(f"{name}={value}\n" for name, value in environ.items()))
    command = ["cluster", "rehearse", "--with", str(root / "image"), "--environment", str(settings)]
    return subprocess.run(
        ["nsenter", f"--net={node.host.path}", sys.executable, "-m", "cni_calico.ctl.main", *command],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
