"""A request for an address while others are released."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cni_calico.docker.addresses import AddressDriver
from cni_calico.docker.context import DockerHost
from cni_calico.docker.documents import RequestFields
from cni_calico.docker.state import DockerState, HeldAddress
from cni_calico.errors import IPAMError
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT

REQUEST = RequestFields("RequestAddress", {"PoolID": "CalicoPoolIPv4", "Address": "", "Options": None})


class OneAddress:
    """An allocator of one address, which somebody has. ``then``: called whenever it has refused another."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._is_held, self._then = True, then

    def assign(self, *_: object) -> list[Any]:
        if self._is_held:
            self._then()
            raise IPAMError("No IPs available in pools: [10.78.0.0/32]")
        return [SimpleNamespace(address=IPv4Address("10.78.0.0"))]

    def release_handle(self, *_: object) -> None:
        self._is_held = False


@pytest.mark.parametrize("released", ["never", "by this call", "by another meanwhile"])
def test_one_that_docker_has_given_back_is_free(tmp_path: Path, released: str) -> None:
    state = DockerState(Files(), str(tmp_path), SILENT)
    state.read()
    state.addresses.put(HeldAddress("ab12", "boot", "CalicoPoolIPv4", "10.78.0.0", owed=released != "never"))

    def another_call() -> None:
        if released == "by another meanwhile":
            allocator.release_handle()
            state.addresses.remove("ab12")

    allocator = OneAddress(another_call)
    datastore = SimpleNamespace(allocator=allocator, config=SimpleNamespace(type="local"), read=lambda *_: None)
    host = SimpleNamespace(state=state, datastore=datastore, boot="boot", node="n1", now=float, later_until=0.0)
    driver = AddressDriver(cast(DockerHost, host))
    if released == "never":
        with pytest.raises(IPAMError):
            driver.request_address(REQUEST)
    else:
        assert "10.78.0.0" in str(driver.request_address(REQUEST))
