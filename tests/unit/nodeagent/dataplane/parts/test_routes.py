"""Routes as a part: what is delicate ripens first, and what counts as a failure."""

from __future__ import annotations

from errno import EINVAL, ENODEV
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import host_routes
from cni_calico.model.host import HostRoute
from cni_calico.nodeagent.dataplane.delta import Changes
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.routes import Grace, Routes
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX

POD = HostRoute(ip_network("10.65.1.5/32"), "calia", scope="link")
FABRIC = HostRoute(ip_network("10.65.2.0/26"), "eth0")
TAP = HostRoute(ip_network("10.65.1.6/32"), "tape5f2a6c4-7f", scope="link")
REMOTE = HostRoute(ip_network("10.65.2.0/26"), "vxlan.calico", ip_address("10.65.2.0"), onlink=True)
UPSTREAMS = HostRoute(ip_network("10.65.1.5/32"), "calia", scope="link", protocol=3, metric=1024)


def applied(monkeypatch: pytest.MonkeyPatch, failures: list[tuple[HostRoute, KernelError]]) -> Pass:
    """A pass on a kernel that has no route and refuses some."""
    monkeypatch.setattr(host_routes, "read_host_routes", lambda deadline, *, names: [])
    monkeypatch.setattr(host_routes, "apply_host_routes", lambda add, remove, deadline: failures)
    done = Pass()
    desired = Desired(routes=frozenset((POD, FABRIC, TAP)), links={7: TAP.device})
    Routes(lambda: 0.0).apply(desired, FELIX, Deadline.after(5), done, True)
    return done


@pytest.mark.parametrize("gone", [POD, TAP])
def test_an_interface_that_has_just_gone_is_no_failure(monkeypatch: pytest.MonkeyPatch, gone: HostRoute) -> None:
    """A pod's by its name, another's because the pass began with it: an OpenStack tap's."""
    done = applied(monkeypatch, [(gone, KernelError("cannot add route", errno=ENODEV))])
    assert done.failed == []
    assert sorted(done.changed) == sorted(f"added route {route}" for route in {POD, FABRIC, TAP} - {gone})


@pytest.mark.parametrize(("route", "number"), [(FABRIC, ENODEV), (POD, EINVAL), (TAP, EINVAL)])
def test_anything_else_is(monkeypatch: pytest.MonkeyPatch, route: HostRoute, number: int) -> None:
    done = applied(monkeypatch, [(route, KernelError(f"cannot add route {route}", errno=number))])
    assert done.failed == [f"cannot add route {route}"]


def test_what_is_delicate_ripens():
    grace = Grace(10.0, {})
    changes = Changes((REMOTE, POD), (UPSTREAMS,))

    def delicate(route):
        return route.device == "calia"

    assert grace.ripe(changes, delicate, 100.0) == Changes((REMOTE,), ())
    assert grace.ripe(changes, delicate, 109.9) == Changes((REMOTE,), ())
    assert grace.ripe(changes, delicate, 110.0) == changes
    assert grace.ripe(Changes(), delicate, 111.0) == Changes()
    assert grace.ripe(changes, delicate, 112.0) == Changes((REMOTE,), ())  # it was not wanted for a moment: new again
