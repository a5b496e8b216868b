"""What dockerd 20.10, 28 and 29 ask, as recorded (tests/netns/docker/calls.py): every call is known and parsed.

Rule: ROWS is the order that the driver relies on, written by hand; a recording that says otherwise is another Docker.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cni_calico.docker.documents import (
    MalformedRequest,
    RequestFields,
    parse_address,
    parse_endpoint,
    parse_network,
    parse_pool,
    parse_ports,
    parse_request,
)
from cni_calico.docker.run import BARE, ipam_calls, network_calls
from tests.conftest import ROOT

RELEASES = ("20.10", "28", "29")
GOLDEN = ROOT / "tests" / "golden" / "docker"
PROGRAM, REVOKE = "ProgramExternalConnectivity", "RevokeExternalConnectivity"
BEGIN = f"RequestAddress CreateEndpoint Join {PROGRAM}"
END = f"{REVOKE} Leave DeleteEndpoint ReleaseAddress"
# without what asks only for the driver's nature, and EndpointOperInfo, which comes when Docker likes
QUESTIONS = {"Activate", "GetCapabilities", "GetDefaultAddressSpaces", "GwAllocCheck", "EndpointOperInfo"}
ROWS = {
    "create network": "RequestPool CreateNetwork",
    "create network of two families": "RequestPool RequestPool CreateNetwork",
    "create network with a subnet": "RequestPool CreateNetwork",
    "remove network": "ReleaseAddress ReleasePool DeleteNetwork",
    "create": "",
    "start": BEGIN,
    "rename": "",
    "restart": f"{END} {BEGIN}",
    "connect": f"RequestAddress RequestAddress CreateEndpoint Join {REVOKE} {PROGRAM}",
    "disconnect": f"{REVOKE} Leave {PROGRAM} DeleteEndpoint ReleaseAddress ReleaseAddress",
    "kill": END,
    "start again": BEGIN,
    "stop": END,
    "remove": "",
    "run until it exits, two families": f"RequestAddress {BEGIN} {END} ReleaseAddress",
    "run with ports": BEGIN,
    "IpamDriver.RequestAddress fails": "RequestAddress",
    "NetworkDriver.CreateEndpoint fails": "RequestAddress CreateEndpoint ReleaseAddress",
    "NetworkDriver.Join fails": "RequestAddress CreateEndpoint Join DeleteEndpoint ReleaseAddress",
    "NetworkDriver.ProgramExternalConnectivity fails": f"{BEGIN} Leave DeleteEndpoint ReleaseAddress",
    "dockerd stopped and started": f"{END} {BEGIN}",
    "dockerd with live-restore stopped and started": "",
    "run": BEGIN,
    "dockerd killed and started": f"ReleaseAddress {BEGIN}",
}
OTHERWISE = {  # since 29 Docker leaves what it could not join
    ("29", "NetworkDriver.Join fails"): "RequestAddress CreateEndpoint Join Leave DeleteEndpoint ReleaseAddress",
    ("29", "NetworkDriver.ProgramExternalConnectivity fails"): f"{BEGIN} Leave Leave DeleteEndpoint ReleaseAddress",
}
PARSERS = {
    "NetworkDriver.CreateNetwork": parse_network,
    "NetworkDriver.CreateEndpoint": parse_endpoint,
    "NetworkDriver.ProgramExternalConnectivity": parse_ports,
    "IpamDriver.RequestPool": parse_pool,
    "IpamDriver.RequestAddress": parse_address,
}


def recorded(release: str) -> dict[str, list[tuple[str, Any]]]:
    return dict(json.loads((GOLDEN / f"{release}.json").read_text()))


def effects(calls: list[tuple[str, Any]]) -> str:
    names = (call.rpartition(".")[2] for call, _ in calls)
    return " ".join(name for name in names if name not in QUESTIONS)


@pytest.mark.parametrize("release", RELEASES)
def test_the_order_of_calls(release: str) -> None:
    rows = recorded(release)
    for row, expected in ROWS.items():
        assert effects(rows[row]) == OTHERWISE.get((release, row), expected), row


@pytest.mark.parametrize("release", RELEASES)
def test_every_call_is_known_and_parsed(release: str) -> None:
    driver: Any = _Anything()
    known = {**network_calls(driver), **ipam_calls(driver)}
    for row, calls in recorded(release).items():
        for call, body in calls:
            assert f"/{call}" in known, (row, call)
            if body is None:
                assert f"/{call}" in BARE, (row, call)
                continue
            fields = parse_request(call, json.dumps(body).encode())
            for name in ("NetworkID", "EndpointID"):
                assert name not in body or fields.id(name) == body[name]
            if (parse := PARSERS.get(call)) is not None:
                parse(fields)
                _require_repeat_refused(call)


def _require_repeat_refused(call: str) -> None:
    """dockerd's repetition of a call in which the driver has died."""
    with pytest.raises(MalformedRequest):
        parse_request(call, b"")


@pytest.mark.parametrize("release", RELEASES)
def test_what_docker_publishes(release: str) -> None:
    program = "NetworkDriver.ProgramExternalConnectivity"
    (body,) = [body for name, body in recorded(release)["run with ports"] if name == program]
    asked = {str(each) for each in parse_ports(RequestFields(program, body))}
    assert asked == {"7/tcp", "70/tcp", "8080/tcp", "9000/udp", "9001/udp"}


class _Anything:
    """A driver of which only the names of calls are asked."""

    def __getattr__(self, name: str) -> Any:
        return name
