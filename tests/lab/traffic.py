"""New connections as fast as they come, and who answers: run inside the network namespaces of pods.

    traffic.py serve PORT...                         UDP echo and TCP accept on every port, until it is ended
    traffic.py flow PROTOCOL ADDRESS ALLOWED FORBIDDEN   a datagram, or a connection (tcp), to both ports from a new
                                                     port of its own, every 4 ms, until SIGTERM; then one line of
                                                     JSON: sent, allowed, forbidden (answers). At this pace a
                                                     minute's connections to a port need no port twice: one that is
                                                     taken again too early loses packets to the old connection
    traffic.py hear                                  a line for each address that sends a ping, once
    traffic.py ask PROTOCOL PORT ADDRESS...          one line of JSON: the addresses that answered within two seconds
    traffic.py resolve PROTOCOL SERVER NAME          one line of JSON: the addresses that a name server has for a name,
                                                     [] when it did not answer within two seconds

Rule: an answer is what proves that a packet passed. For TCP a refusal is an answer too: the packet has arrived. In a
flow a connection counts only when the first packet was enough: one whose first packet had to be sent again was lost.
"""

from __future__ import annotations

import errno
import json
import select
import signal
import socket
import struct
import sys
import time

ROUND_S, LAST_S, ASK_S = 0.004, 2.0, 2.0
ECHO_REQUEST = 8
OPEN = 900  # sockets that still wait for an answer
RETRANSMITTED = 100  # where tcpi_total_retrans lies in TCP_INFO


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(ports: list[int]) -> None:
    poll, by_number = select.poll(), {}
    for port in ports:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            opened = socket.socket(socket.AF_INET6, kind)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(("::", port))
            if kind == socket.SOCK_STREAM:
                opened.listen(4096)
            poll.register(opened, select.POLLIN)
            by_number[opened.fileno()] = opened
    print("serving", flush=True)
    while True:
        for number, _ in poll.poll():
            opened = by_number[number]
            if opened.type == socket.SOCK_STREAM:
                opened.accept()[0].close()
            else:
                data, source = opened.recvfrom(2048)
                opened.sendto(data, source)


def hear() -> None:
    opened = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    known: set[str] = set()
    print("hearing", flush=True)
    while True:
        packet, (source, _) = opened.recvfrom(2048)
        is_request = packet[(packet[0] & 15) * 4] == ECHO_REQUEST
        if is_request and source not in known:
            known.add(source)
            print(source, flush=True)


def flow(protocol: str, address: str, allowed: int, forbidden: int) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    sent = 0
    answered = {allowed: 0, forbidden: 0}
    waiting: dict[int, tuple[socket.socket, int]] = {}  # the oldest first
    tcp, poll = protocol == "tcp", select.poll()

    def forget(number: int) -> tuple[socket.socket, int]:
        poll.unregister(number)
        return waiting.pop(number)

    def look(seconds: float) -> None:
        for number, _ in poll.poll(seconds * 1000):
            opened, port = forget(number)
            answered[port] += connected_at_once(opened) if tcp else has_answer(opened)
            opened.close()

    print("sending", flush=True)
    while not ended:
        for port in (allowed, forbidden):
            opened = socket.socket(family(address), socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
            opened.setblocking(False)
            if tcp:  # no port is kept back when the connection ends
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            opened.connect_ex((address, port))
            try:
                if not tcp:
                    opened.send(str(port).encode())
            except PermissionError:
                continue  # the packet filter's own answer
            poll.register(opened, select.POLLOUT if tcp else select.POLLIN)
            waiting[opened.fileno()] = (opened, port)
        sent += 1
        limit = time.monotonic() + ROUND_S
        while (left := limit - time.monotonic()) > 0:
            look(left)
        while len(waiting) > OPEN:
            forget(next(iter(waiting)))[0].close()
    limit = time.monotonic() + LAST_S
    while (left := limit - time.monotonic()) > 0 and waiting:
        look(left)
    print(json.dumps({"sent": sent, "allowed": answered[allowed], "forbidden": answered[forbidden]}), flush=True)


def has_answer(opened: socket.socket) -> bool:
    try:
        return bool(opened.recv(100))
    except OSError:
        return False  # an ICMP error: no answer of the other end's


def connected_at_once(opened: socket.socket) -> bool:
    if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in (0, errno.ECONNREFUSED):
        return False
    told = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RETRANSMITTED + 4)
    return int.from_bytes(told[RETRANSMITTED:], sys.byteorder) == 0


def ask(protocol: str, port: int, addresses: list[str]) -> None:
    tcp = protocol == "tcp"
    poll, by_number, reached = select.poll(), {}, set()
    for address in addresses:
        opened = socket.socket(family(address), socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
        opened.setblocking(False)
        error = opened.connect_ex((address, port))
        if not tcp:
            opened.send(b"ask")
        elif error not in (0, errno.EINPROGRESS):
            continue
        poll.register(opened, select.POLLOUT if tcp else select.POLLIN)
        by_number[opened.fileno()] = (opened, address)
    limit = time.monotonic() + ASK_S
    while by_number and (left := limit - time.monotonic()) > 0:
        for number, _ in poll.poll(left * 1000):
            opened, address = by_number.pop(number)
            poll.unregister(opened)
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
                reached.add(address)
            opened.close()
    print(json.dumps(sorted(reached)))


def resolve(protocol: str, server: str, name: str) -> None:
    labels = b"".join(len(label).to_bytes(1, "big") + label.encode() for label in name.split("."))
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\x00\x00\x01\x00\x01"  # recursive, A, IN
    opened = socket.socket(family(server), socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
    opened.settimeout(ASK_S)
    try:
        opened.connect((server, 53))
        opened.sendall(len(query).to_bytes(2, "big") + query if protocol == "tcp" else query)
        answer = opened.recv(4096)
        if protocol == "tcp":
            while len(answer) < 2 or len(answer) < 2 + int.from_bytes(answer[:2], "big"):
                answer += opened.recv(4096)
            answer = answer[2:]
    except OSError:
        print("[]")
        return
    print(json.dumps(sorted(socket.inet_ntoa(part) for part in addresses_in(answer, len(query)))))


def addresses_in(answer: bytes, position: int) -> list[bytes]:
    """The data of the A records, which begin behind the question."""
    found = []
    for _ in range(int.from_bytes(answer[6:8], "big")):
        while (size := answer[position]) and size < 0xC0:
            position += 1 + size
        position += 2 if answer[position] else 1
        kind, length = int.from_bytes(answer[position : position + 2], "big"), answer[position + 8 : position + 10]
        position += 10
        if kind == 1:
            found.append(answer[position : position + 4])
        position += int.from_bytes(length, "big")
    return found


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "serve":
        serve([int(port) for port in rest])
    elif verb == "flow":
        flow(rest[0], rest[1], int(rest[2]), int(rest[3]))
    elif verb == "hear":
        hear()
    elif verb == "resolve":
        resolve(*rest)
    else:
        ask(rest[0], int(rest[1]), rest[2:])
