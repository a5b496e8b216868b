"""Desired state carried out: what counts as a failure of it."""

from __future__ import annotations

from errno import EINVAL, ENODEV
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import host_routes
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT
from cni_calico.model.host import HostRoute
from cni_calico.nodeagent.dataplane.apply import Applier, Pass
from cni_calico.nodeagent.dataplane.desired import Desired
from tests.unit.nodeagent.fabric import FELIX

POD = HostRoute(ip_network("10.65.1.5/32"), "cali1", scope="link")
FABRIC = HostRoute(ip_network("10.65.2.0/26"), "eth0")


def applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failures: list[tuple[HostRoute, KernelError]]) -> Pass:
    """A pass on a kernel that has no route and refuses some."""
    monkeypatch.setattr(host_routes, "read_host_routes", lambda deadline: [])
    monkeypatch.setattr(host_routes, "apply_host_routes", lambda add, remove, deadline: failures)
    monkeypatch.setattr("cni_calico.kernel.tunnels.read_tunnels", lambda names, deadline: {})
    monkeypatch.setattr("cni_calico.kernel.tunnels.read_vteps", lambda names, deadline: (frozenset(), frozenset()))
    monkeypatch.setattr(
        "cni_calico.nodeagent.dataplane.parts.masquerade.Rules.apply", lambda *arguments, **options: None
    )
    applier = Applier(SILENT, Files(), str(tmp_path / "mtu"), lambda: 0.0)
    return applier.apply(Desired(routes=frozenset((POD, FABRIC))), FELIX, Deadline.after(5), full=True)


def test_a_pods_interface_that_has_just_gone_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = applied(monkeypatch, tmp_path, [(POD, KernelError("cannot add route", errno=ENODEV))])
    assert done.failed == []
    assert done.changed == [f"added route {FABRIC}"]


@pytest.mark.parametrize(("route", "number"), [(FABRIC, ENODEV), (POD, EINVAL)])
def test_anything_else_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, route: HostRoute, number: int) -> None:
    done = applied(monkeypatch, tmp_path, [(route, KernelError(f"cannot add route {route}", errno=number))])
    assert done.failed == [f"cannot add route {route}"]
