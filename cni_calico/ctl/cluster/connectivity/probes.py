"""What is tried between two pods: connections, packets of full size, names, and a policy that forbids a port.

Rule: every socket comes from ``make``, so the same code runs inside of a pod and, on a host, from outside in a pod's
namespace. What may become ready a moment after the pods (routes, services, policies) is tried until it works.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address

from cni_calico.ctl.cluster.connectivity.findings import (
    CLOSED_PORT,
    FAILED,
    OK,
    OPEN_PORT,
    Trial,
    TrialPlan,
    family_of,
)

MakeSocket = Callable[[int, int], socket.socket]

HELLO = b"calico-check\n"
ANSWER_S = 2.0  # for one connection
ECHO_S = 0.7  # for one packet
PATIENCE_S = 15.0  # until routes, services and names must be there
POLICY_S = 30.0  # until a policy must be in force
_PAUSE_S = 0.25
_SURE = 2  # attempts in a row without an answer: then a port counts as closed
_ECHOES = 3  # packets may be lost
# from <linux/in.h> and <linux/in6.h>; Python names few of them
_PROBE = 3  # IP_PMTUDISC_PROBE: never fragmented, and not refused because of an MTU learned earlier
_OPTIONS = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 14, 28),  # level, MTU_DISCOVER, MTU, bytes of the headers
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 24, 48),
}
_LISTENERS = ((socket.SOCK_STREAM, OPEN_PORT), (socket.SOCK_STREAM, CLOSED_PORT), (socket.SOCK_DGRAM, OPEN_PORT))


def own_socket(family: int, kind: int) -> socket.socket:
    """A socket in this process's own network namespace."""
    return socket.socket(family, kind)


def _family(address: str) -> int:
    return socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET


# -- the pod that answers ---------------------------------------------------------------------------------------------


def open_listeners(make: MakeSocket) -> list[socket.socket]:
    """Sockets that listen on all addresses of the families that exist there. The caller closes them. Raises OSError."""
    opened: list[socket.socket] = []
    for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for kind, port in _LISTENERS:
            try:
                listener = make(family, kind)
            except OSError:
                if family == socket.AF_INET:
                    raise
                continue  # a kernel without IPv6
            opened.append(listener)
            level, discover, _, _ = _OPTIONS[family]
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kind == socket.SOCK_DGRAM:
                listener.setsockopt(level, discover, _PROBE)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((everywhere, port))
            if kind == socket.SOCK_STREAM:
                listener.listen(64)
    return opened


def answer(listeners: Sequence[socket.socket], stop: threading.Event) -> None:
    """Greet every connection and return every packet, until ``stop`` is set."""
    while not stop.is_set():
        ready, _, _ = select.select(listeners, (), (), _PAUSE_S)
        for listener in ready:
            try:
                if listener.type == socket.SOCK_STREAM:
                    with listener.accept()[0] as connection:
                        connection.sendall(HELLO)
                else:
                    data, peer = listener.recvfrom(65536)
                    listener.sendto(data, peer)
            except OSError:
                continue  # the other end is gone, or the answer is larger than this end's MTU


# -- the pod that tries -----------------------------------------------------------------------------------------------


def try_all(plan: TrialPlan, make: MakeSocket, forbid: Callable[[], None]) -> Iterator[Trial]:
    """Try everything in the plan. ``forbid`` has a policy created that forbids the other pod's CLOSED_PORT and allows
    its OPEN_PORT.
    """
    reached = []
    for address in plan.addresses:
        name = family_of(address)
        why = reach(make, address, OPEN_PORT)
        yield Trial(f"{name} between pods", FAILED if why else OK, f"{address}: {why}" if why else address)
        if not why:
            reached.append(address)
            yield try_packet_size(make, address)
    for address in plan.services:
        why = reach(make, address, OPEN_PORT)
        yield Trial(f"{family_of(address)} service", FAILED if why else OK, f"{address}: {why}" if why else address)
    for name, address in plan.names.items():
        yield try_name(name, address)
    if plan.policed and reached:
        yield from try_policy(make, reached, forbid)


def reach(make: MakeSocket, address: str, port: int, patience_s: float = PATIENCE_S) -> str:
    """Why the other pod does not answer there; "" once it does."""
    end = time.monotonic() + patience_s
    while (why := _ask(make, address, port)) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    return why


def _ask(make: MakeSocket, address: str, port: int) -> str:
    with make(_family(address), socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect((address, port))
            return "" if connection.recv(64) == HELLO else f"something else answers on port {port}"
        except TimeoutError:
            return f"port {port} does not answer within {ANSWER_S:.0f} s"
        except OSError as e:
            return f"port {port}: {e.strerror or e}"


def try_packet_size(make: MakeSocket, address: str) -> Trial:
    """Whether packets as large as the pod's interface takes come through and back, unfragmented."""
    what = f"{family_of(address)} MTU"
    with probe_socket(make, address) as probe:
        headers = _OPTIONS[probe.family][3]
        mtu = full_size(probe) + headers
        if _returns(probe, mtu - headers, _ECHOES):
            return Trial(what, OK, f"packets of {mtu} bytes pass")
        least, most = headers, mtu  # the first size is assumed to pass, the second does not
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if _returns(probe, middle - headers, 1) else (least, middle)
    if least == headers:
        return Trial(what, FAILED, f"no UDP packet comes back from {address}")
    return Trial(
        what, FAILED, f"pods send packets of {mtu} bytes, but only {least} bytes pass: lower the pods' MTU (veth_mtu)"
    )


def probe_socket(make: MakeSocket, address: str) -> socket.socket:
    """Of UDP, to the other pod, whose packets are never fragmented; the caller closes it. Raises OSError."""
    probe = make(_family(address), socket.SOCK_DGRAM)
    try:
        level, discover, _, _ = _OPTIONS[probe.family]
        probe.setsockopt(level, discover, _PROBE)
        probe.connect((address, OPEN_PORT))
    except OSError:
        probe.close()
        raise
    return probe


def full_size(probe: socket.socket) -> int:
    """The bytes that fill a packet of the interface that the probe goes out by."""
    level, _, mtu_option, headers = _OPTIONS[probe.family]
    return probe.getsockopt(level, mtu_option) - headers


def _returns(probe: socket.socket, size: int, attempts: int) -> bool:
    for _ in range(attempts):
        sent = time.monotonic_ns().to_bytes(8).ljust(size, b"x")[: max(size, 0)]
        end = time.monotonic() + ECHO_S
        try:
            probe.send(sent)
            while (left := end - time.monotonic()) > 0:
                probe.settimeout(left)
                if probe.recv(65536) == sent:
                    return True
        except OSError:
            continue  # no answer in time, or an error caused by an earlier packet
    return False


def try_name(name: str, address: str) -> Trial:
    """Whether the pod's name service resolves ``name`` to ``address`` ("": to any address)."""
    found: list[str] = []
    why: list[str] = ["no answer"]

    def ask() -> None:
        end = time.monotonic() + PATIENCE_S
        while not found and time.monotonic() < end:
            try:
                found.extend(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}))
            except OSError as e:
                why[:] = [str(e.strerror or e)]
                time.sleep(_PAUSE_S)

    asking = threading.Thread(target=ask, daemon=True)  # the resolver itself cannot be told when to give up
    asking.start()
    asking.join(PATIENCE_S + ANSWER_S)
    if not found:
        return Trial("DNS", FAILED, f"{name}: {why[0]}")
    if address and address not in found:
        return Trial("DNS", FAILED, f"{name} is {', '.join(found)}, not {address}")
    return Trial("DNS", OK, f"{name} is {', '.join(found)}")


def try_policy(make: MakeSocket, addresses: Sequence[str], forbid: Callable[[], None]) -> Iterator[Trial]:
    for address in addresses:
        if why := reach(make, address, CLOSED_PORT):
            yield Trial(f"{family_of(address)} policy", FAILED, f"{why}, although no policy of this check forbids it")
            return
    forbid()
    begun = time.monotonic()
    for address in addresses:
        what = f"{family_of(address)} policy"
        if not _until_closed(make, address, begun + POLICY_S):
            yield Trial(what, FAILED, f"a port still answers {POLICY_S:.0f} s after a policy forbade it")
        elif why := reach(make, address, OPEN_PORT):
            yield Trial(what, FAILED, f"a policy also keeps out what it allows: {why}")
        else:
            yield Trial(what, OK, "a policy keeps out what it forbids, and nothing else")


def _until_closed(make: MakeSocket, address: str, end: float) -> bool:
    silent = 0
    while silent < _SURE:
        silent = silent + 1 if _ask(make, address, CLOSED_PORT) else 0
        if not silent and time.monotonic() >= end:
            return False
        time.sleep(_PAUSE_S)
    return True
