"""Which relay is used."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.access import KubernetesAccess, RelayAccess, parse_relay_address
from tests.fakes.scripted_http import Scripted


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("typha", ("typha", 5473)),
        ("typha:1", ("typha", 1)),
        ("10.0.0.1:5473", ("10.0.0.1", 5473)),
        ("fd00::1", ("fd00::1", 5473)),
        ("[fd00::1]:99", ("fd00::1", 99)),
        ("[fd00::1]", ("fd00::1", 5473)),
    ],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert parse_relay_address(text) == found


@pytest.mark.parametrize("text", ["", ":5473", "typha:0", "typha:many", "typha:99999", "[fd00::1]:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        parse_relay_address(text)


def slices(*addresses: str, name: str = "calico-typha") -> dict[str, Any]:
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    return {"items": [{"ports": [{"name": name, "port": 5473}], "endpoints": endpoints}]}


def test_a_relay_that_failed_comes_last() -> None:
    server = Scripted([], always=(200, slices("10.0.0.1", "10.0.0.2", "fd00::3")))
    targets = RelayTargets(RelayAccess(service="calico-typha"), KubernetesAPI(KubernetesAccess(api_root=server.url)))
    for failed in ("10.0.0.1:5473", "[fd00::3]:5473"):
        targets.failed(failed)
    assert {targets.next(Deadline.after(5))[0] for _ in range(10)} == {"10.0.0.2:5473"}
    targets.failed("10.0.0.2:5473")
    assert {targets.next(Deadline.after(5))[0] for _ in range(10)} == {"10.0.0.1:5473"}
    assert "service-name%3Dcalico-typha" in server.requests[0][1]
    server.close()


def test_a_service_without_endpoints_is_said() -> None:
    server = Scripted([], always=(200, slices("10.0.0.1", name="metrics")))
    targets = RelayTargets(RelayAccess(service="calico-typha"), KubernetesAPI(KubernetesAccess(api_root=server.url)))
    with pytest.raises(DatastoreUnavailable, match="kube-system/calico-typha has no ready endpoint"):
        targets.next(Deadline.after(5))
    server.close()
