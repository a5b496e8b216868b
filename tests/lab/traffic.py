"""New connections as fast as they come, and who answers: run inside the network namespaces of pods.

    traffic.py serve PORT...                         UDP echo and TCP accept on every port, until it is ended
    traffic.py flow ADDRESS ALLOWED FORBIDDEN        a datagram to both ports from a new port of its own, every 4 ms,
                                                     until SIGTERM; then one line of JSON: sent, allowed, forbidden
                                                     (answers)
    traffic.py hear                                  a line for each address that sends a ping, once
    traffic.py ask PROTOCOL PORT ADDRESS...          one line of JSON: the addresses that answered within two seconds

Rule: an answer is what proves that a packet passed. For TCP a refusal is an answer too: the packet has arrived.
"""

from __future__ import annotations

import errno
import json
import select
import signal
import socket
import sys
import time

ROUND_S, LAST_S, ASK_S = 0.004, 2.0, 2.0
ECHO_REQUEST = 8
OPEN = 250  # rounds whose sockets are still listened to


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
                opened.listen(128)
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


def flow(address: str, allowed: int, forbidden: int) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    sent = 0
    answered = {allowed: 0, forbidden: 0}
    sockets: list[socket.socket] = []

    def look(listening: list[socket.socket], seconds: float) -> None:
        poll = select.poll()
        for opened in listening:
            poll.register(opened, select.POLLIN)
        by_number = {opened.fileno(): opened for opened in listening}
        for number, _ in poll.poll(seconds * 1000):
            try:
                answered[int(by_number[number].recv(100))] += 1
            except OSError:
                continue  # an ICMP error: no answer of the other end's

    print("sending", flush=True)
    while not ended:
        opened = socket.socket(family(address), socket.SOCK_DGRAM)
        opened.setblocking(False)
        for port in (allowed, forbidden):
            try:
                opened.sendto(str(port).encode(), (address, port))
            except PermissionError:
                continue  # the packet filter's own answer
        sent += 1
        sockets.append(opened)
        look(sockets, ROUND_S)
        while len(sockets) > OPEN:
            sockets.pop(0).close()
    limit = time.monotonic() + LAST_S
    while (left := limit - time.monotonic()) > 0:
        look(sockets, left)
    print(json.dumps({"sent": sent, "allowed": answered[allowed], "forbidden": answered[forbidden]}), flush=True)


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


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "serve":
        serve([int(port) for port in rest])
    elif verb == "flow":
        flow(rest[0], int(rest[1]), int(rest[2]))
    elif verb == "hear":
        hear()
    else:
        ask(rest[0], int(rest[1]), rest[2:])
