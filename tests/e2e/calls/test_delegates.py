"""IPAM plugins of others: STATUS and GC are passed on, their failures do not keep the rest from being done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE
from tests.e2e.host import Node, added, addresses, cleaned
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

DELEGATE = """#!/bin/sh
echo "$CNI_COMMAND" >>{log}
cat >>{log}.stdin
case $CNI_COMMAND in
  {unknown}) echo '{{"cniVersion":"1.1.0","code":4,"msg":"unknown CNI_COMMAND: {unknown}"}}'; exit 1 ;;
  STATUS) {status} ;;
  GC) {gc} ;;
  DEL) {delete} ;;
  ADD) echo '{{"cniVersion":"1.0.0","ips":[{{"address":"10.88.0.5/24"}}],"dns":{{"domain":"from-ipam"}}}}' ;;
esac
"""


@pytest.fixture
def scripted(node: Node, tmp_path: Path) -> Any:
    """A node whose IPAM plugin is a script; ``scripted(...)`` says what it does and returns what was asked of it."""
    log = tmp_path / "asked"
    node.overrides["ipam"] = {"type": "scripted-ipam"}
    node.environ["CNI_PATH"] = f"/nonexistent:{tmp_path}"

    def script(**steps: str) -> Any:
        values = {"unknown": "NEVER", "status": "exit 0", "gc": "exit 0", "delete": "exit 0", **steps}
        program = tmp_path / "scripted-ipam"
        program.write_text(DELEGATE.format(log=log, **values))
        program.chmod(0o755)
        return lambda: log.read_text().split() if log.exists() else []

    return script


def test_status_and_gc_reach_the_delegate(node: Node, scripted: Any) -> None:
    asked = scripted()
    assert node.call("STATUS", "", "").ok
    assert node.call("GC", "", "", **{"cni.dev/valid-attachments": []}).ok
    assert asked() == ["STATUS", "GC"]
    assert '"cni.dev/valid-attachments"' in (node.root / "asked.stdin").read_text()


@pytest.mark.parametrize("command", ["STATUS", "GC"])
def test_a_delegate_that_is_older_than_the_verb(node: Node, scripted: Any, command: str) -> None:
    asked = scripted(unknown=command)
    assert node.call(command, "", "", **{"cni.dev/valid-attachments": []}).ok
    assert asked() == [command]


@pytest.mark.parametrize("code", [50, 51])
def test_a_delegates_status_is_ours(node: Node, scripted: Any, code: int) -> None:
    scripted(status=f"""echo '{{"cniVersion":"1.1.0","code":{code},"msg":"no lease"}}'; exit 1""")
    reply = node.call("STATUS", "", "")
    assert reply.document["code"] == code and "no lease" in reply.document["msg"]


def test_a_delegate_that_fails_keeps_nothing_else_from_being_removed(
    node: Node, scripted: Any, make_pod_ns: MakeNamespace
) -> None:
    node, asked = node, scripted(delete="echo broken >&2; exit 3")
    pod = make_pod_ns()
    assert added(node, "c1", pod).document["dns"] == {"domain": "from-ipam"}
    failed = node.call("DEL", "c1", pod.path)
    assert failed.document["code"] == 131 and "broken" in failed.document["msg"]
    assert not node.endpoints() and pod.link("eth0") is None and node.host.link("calic1") is None
    scripted()
    assert node.call("DEL", "c1", pod.path).ok
    assert asked() == ["ADD", "DEL", "DEL"] and not node.leftovers()


def test_a_failing_gc_of_a_delegate_is_told_with_the_rest(node: Node, scripted: Any, pod_ns: Namespace) -> None:
    scripted()
    added(node, "c1", pod_ns)
    scripted(gc="echo no >&2; exit 1")
    reply = node.call("GC", "", "", **{"cni.dev/valid-attachments": []})
    assert reply.document["code"] == 133 and "scripted-ipam" in reply.document["msg"]
    assert not node.leftovers()


@pytest.mark.cnitool
def test_del_with_host_local_and_a_placeholder_for_the_subnet(node: Node, pod_ns: Namespace, tmp_path: Path) -> None:
    """On DEL host-local needs subnets that are valid and do not overlap, but not the ones of the ADD."""
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    section = {"type": "host-local", "dataDir": str(tmp_path / "leases")}
    real = {**section, "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}
    placeholders = {**section, "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]}
    assert len(addresses(added(node, "c1", pod_ns, ipam=real))) == 2
    assert node.call("DEL", "c1", pod_ns.path, ipam=placeholders).ok
    leases = [path.name for path in (tmp_path / "leases" / "calnet").iterdir() if path.name[0].isdigit()]
    assert not leases and not node.leftovers()


@pytest.mark.cnitool
def test_the_routes_of_host_local_are_kept_and_checked(node: Node, pod_ns: Namespace, tmp_path: Path) -> None:
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    node.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "routes": [{"dst": "10.0.0.0/8"}],
        "dataDir": str(tmp_path / "leases"),
    }
    first = added(node, "c1", pod_ns)
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=first.document).ok
    assert added(node, "c1", pod_ns).document == first.document
    assert {route["dst"] for route in pod_ns.routes()} == {"169.254.1.1", "10.0.0.0/8"}
    pod_ns.do("route", "del", "10.0.0.0/8")
    checked = node.call("CHECK", "c1", pod_ns.path, prevResult=first.document)
    assert checked.document["code"] == 132 and "10.0.0.0/8" in checked.document["msg"]
    cleaned(node, "c1")
