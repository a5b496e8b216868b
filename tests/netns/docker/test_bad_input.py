"""What Docker's users get to read when something cannot be had, and that nothing is left of it."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.deadlines import until
from tests.netns.docker.machine import Machine
from tests.netns.policing.lab import socket_in

pytestmark = [pytest.mark.netns, pytest.mark.docker]

CREATE = ("network", "create", "--driver", "calico", "--ipam-driver", "calico-ipam")
REFUSED = [
    (("--subnet", "10.9.0.0/16"), "no IP pool has this range"),
    (("--subnet", "10.77.0.0/24"), "its IP pool closed is disabled"),
    (("--subnet", "10.65.0.0/24", "--ip-range", "10.65.0.0/28"), "--ip-range"),
    (("--subnet", "10.65.0.0/24", "--gateway", "10.65.0.1"), "--gateway"),
    (("--subnet", "10.65.0.0/24", "--aux-address", "router=10.65.0.9"), "--aux-address"),
    (("--ipam-opt", "pool=x"), "--ipam-opt pool"),
    (("--internal",), "--internal"),
    (("-o", "mtuu=1400"), "-o mtuu"),
    (("-o", "ipv4_pools=a"), "choose the pool with --subnet"),
    (("-o", "mtu=9"), "mtu=9"),
    (("-o", "profile_ingress=some"), "profile_ingress=some"),
]


def no_addresses(box: Machine) -> bool:
    return not (box.handles() or box.files("addresses"))


@contextmanager
def closed_pool(box: Machine) -> Iterator[None]:
    box.lab.put(
        "IPPool", "closed", {"cidr": "10.77.0.0/24", "blockSize": 28, "disabled": True, "nodeSelector": "all()"}
    )
    yield
    box.lab.remove("IPPool", "closed")


def test_networks_that_are_refused(box: Machine) -> None:
    with closed_pool(box):
        for arguments, text in REFUSED:
            assert text in box.refused(*CREATE, *arguments, "web"), arguments
    other = ("network", "create", "--driver", "calico", "--subnet", "172.30.0.0/24", "web")
    assert "use --ipam-driver calico-ipam" in box.refused(*other)
    assert not box.files("networks") and no_addresses(box)
    assert not box.docker("network", "ls", "-q", "--filter", "name=web").stdout


def test_addresses_that_are_refused(box: Machine) -> None:
    box.network("web", "--subnet", "10.65.0.0/24")

    def refused(name: str, address: str) -> str:
        return box.refused("run", "-d", "--name", name, "--network", "web", "--ip", address, "box", "sleep", "100")

    assert box.run("chosen", "web", "--ip", "10.65.0.77") == "10.65.0.77"
    assert "10.65.0.77" in refused("taken", "10.65.0.77")
    box.lab.put("IPReservation", "kept", {"reservedCIDRs": ["10.65.0.88"]})
    assert "reserved" in refused("reserved", "10.65.0.88")
    box.lab.remove("IPReservation", "kept")
    assert "10.66.0.1" in refused("outside", "10.66.0.1")
    assert len(box.handles()) == len(box.files("addresses")) == len(box.files("endpoints")) == 1
    box.docker("restart", "-t", "0", "chosen")
    assert box.address("chosen", "web") == "10.65.0.77", "it keeps an address that was chosen"


def test_ports_that_cannot_be_published(box: Machine) -> None:
    """Taken by a program of the host, by another container; and where a bridge network has the default route."""
    box.network("web")
    start = ("run", "-d", "--network", "web")
    with socket_in(box.lab.host, socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("0.0.0.0", 8080))
        taken.listen()
        text = box.refused(*start, "--name", "one", "-p", "8080:80", "box", "sleep", "100")
        assert "cannot publish 8080/tcp: the port is in use on 0.0.0.0" in text
        until(box.is_clean, "nothing is left")
    box.run("two", "web", "-p", "8080:80")
    assert "in use" in box.refused(*start, "--name", "three", "-p", "8080:81", "box", "sleep", "100")
    assert box.docker("run", "-d", "-p", "8080:80", "box", "sleep", "100", check=False).returncode, (
        "Docker's proxy, too"
    )
    box.run("four", "bridge", "-p", "8081:80")
    box.docker("network", "connect", "web", "four")
    assert not box.records()["four"]["spec"].get("ports"), "Docker's bridge publishes it"


def test_addresses_that_are_not_to_be_had(box: Machine) -> None:
    """No pool of that name, none free; and nothing is held."""

    def ask(pool: str) -> dict[str, str]:
        return box.ask("calico-ipam", "IpamDriver.RequestAddress", PoolID=pool, Address="", Options=None)

    small = {"cidr": "10.78.0.0/30", "blockSize": 30, "nodeSelector": "all()"}
    box.lab.put("IPPool", "small", small)
    given = []
    while "Address" in (answer := ask("small")):
        given.append(answer["Address"])
    assert "No IPs available in pools: [10.78.0.0/30]" in answer["Error"], answer
    assert len(given) == 4
    assert "there is no IP pool gone" in ask("gone")["Error"]
    assert len(box.handles()) == len(box.files("addresses")) == 4

    def release(address: str) -> None:
        box.ask("calico-ipam", "IpamDriver.ReleaseAddress", PoolID="small", Address=address.split("/")[0])

    for address in list(given):
        release(address)
        assert ask("small")["Address"] == address, "one that Docker has given back is free, however soon it asks"
    for address in given:
        release(address)
    until(lambda: no_addresses(box), "nothing is held")
    box.lab.remove("IPPool", "small")


def test_what_docker_does_without_us(box: Machine) -> None:
    """An address of its own choice in the container; a protocol that the kernel may not have."""
    box.network("web")
    box.run("local", "web", "--link-local-ip", "169.254.8.8")
    assert "169.254.8.8" in box.docker("exec", "local", "ip", "addr").stdout
    done = box.docker("run", "-d", "--network", "web", "-p", "9999:9999/sctp", "box", "sleep", "100", check=False)
    assert not done.returncode or "cannot publish 9999/sctp" in done.stderr


def test_a_datastore_that_is_not_ready(box: Machine) -> None:
    box.network("web")
    box.run("before", "web")
    box.lab.put("ClusterInformation", "default", {"datastoreReady": False})
    text = box.refused("run", "-d", "--name", "one", "--network", "web", "box", "sleep", "100")
    assert "not ready to process requests" in text
    box.docker("rm", "-f", "before")
    box.lab.remove("ClusterInformation", "default")
    until(box.is_clean, "nothing is left")


def answer_to(box: Machine, request: bytes, name: str = "calico") -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(box.plugins / f"{name}.sock"))
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b""))


def post(call: str, body: bytes) -> bytes:
    return b"POST /%s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (call.encode(), len(body), body)


JOIN, PROGRAM = "NetworkDriver.Join", "NetworkDriver.ProgramExternalConnectivity"
UNKNOWN = b'"NetworkID": "%s", "EndpointID": "%s"' % (b"a" * 64, b"b" * 64)
PORT = b'{"com.docker.network.portmap": [{"Proto": 6, "Port": 80}]}'


def test_malformed_requests(box: Machine) -> None:
    """On sockets that are root's alone. The first is what dockerd repeats after a crash of the driver."""
    asked = {
        post(JOIN, b""): 400,
        post(JOIN, b"[]"): 400,
        post(JOIN, b"{"): 400,
        post(JOIN, b"[" * 100_000): 400,
        post(JOIN, b'{"EndpointID": "../../x"}'): 400,
        post(JOIN, b'{"EndpointID": 7}'): 400,
        post(JOIN, b"{%s}" % UNKNOWN): 400,
        post(PROGRAM, b'{%s, "Options": %s}' % (UNKNOWN, PORT)): 400,
        post(PROGRAM, b'{%s, "Options": {"com.docker.network.portmap": [{"Port": "80"}]}}' % UNKNOWN): 400,
        post("NetworkDriver.CreateEndpoint", b'{%s, "Interface": "eth0"}' % UNKNOWN): 400,
        post("NetworkDriver.Fly", b"{}"): 404,
        b"GET /NetworkDriver.Join HTTP/1.1\r\n\r\n": 405,
        b"POST /NetworkDriver.Leave HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n": 413,
        b"hello\r\n\r\n": 400,
    }
    for request, status in asked.items():
        answer = answer_to(box, request)
        assert answer.startswith(b"HTTP/1.1 %d " % status) and b'{"Err": "' in answer, (request[:200], answer)
        assert b"Traceback" not in answer
    for body in (b"", b'{"PoolID": 7}', b'{"PoolID": "CalicoPoolIPv4", "Address": "x"}', b"{}"):
        answer = answer_to(box, post("IpamDriver.RequestAddress", body), "calico-ipam")
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"Error": "' in answer, (body, answer)
    for name in ("calico", "calico-ipam"):
        assert stat.S_IMODE((box.plugins / f"{name}.sock").stat().st_mode) == 0o600
    until(box.is_clean, "nothing is left")


def test_what_is_unknown_or_gone_is_not_missed(box: Machine) -> None:
    """Docker never repeats what ends something, so that it is gone already is a success."""
    for call in ("Leave", "DeleteEndpoint", "RevokeExternalConnectivity"):
        request = post(f"NetworkDriver.{call}", b"{%s}" % UNKNOWN)
        assert answer_to(box, request).endswith(b"\r\n\r\n{}"), call
    assert box.ask("calico", "NetworkDriver.DeleteNetwork", NetworkID="a" * 64) == {}
    assert box.ask("calico-ipam", "IpamDriver.ReleasePool", PoolID="gone") == {}
    for address in ("10.65.0.9", "169.254.1.1", "192.0.2.1", ""):
        assert box.ask("calico-ipam", "IpamDriver.ReleaseAddress", PoolID="CalicoPoolIPv4", Address=address) == {}
    until(box.is_clean, "and nothing is owed for ever")
