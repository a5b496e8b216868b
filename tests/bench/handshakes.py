"""What a TLS handshake of a relay and a client takes of the processor, and what other keys or resumed sessions change.

    python tests/bench/handshakes.py [--count 300] [--rounds 5]                      a minute; no root
    python tests/bench/handshakes.py --processes 5000 [--rounds 3]

Both sides in one process, over memory, in turns; medians of the rounds. The relay's side is the product's
(`relay.parts.server_context`). "Resumed" is TLS 1.3 with the session of an earlier handshake with the same context:
`ssl` has no way to give two processes the same key for tickets, so it is what a client could have at a relay that has
not been restarted.

``--processes N`` is the floor of relay.py's resuming: N connections on loopback from one process to another, with P-256
keys, each accepted, taken through the handshake and sent a byte by nothing but OpenSSL in as many threads as there are
processors. Prints how long they took, and the processor time of either process (getrusage).
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.relay.parts import server_context

KEYS = {"P-256": "ecparam -name prime256v1 -genkey -noout", "RSA-2048": "genrsa"}
SMALL = b"x"


def openssl(directory: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=directory, capture_output=True, check=True)


def make_certificates(directory: Path, key: str) -> None:
    openssl(directory, f"{key} -out ca.key")
    openssl(directory, "req -x509 -new -key ca.key -subj /CN=relay-ca -days 30 -out ca.crt")
    (directory / "server.ext").write_text("subjectAltName=DNS:relay\n")
    (directory / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "client"):
        openssl(directory, f"{key} -out {name}.key")
        openssl(directory, f"req -new -key {name}.key -subj /CN=typha-{name} -out {name}.csr")
        signed = f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile {name}.ext"
        openssl(directory, f"{signed} -out {name}.crt")


class Sides:
    """A relay's context and a client's. ``resumes``: the client shows the session of its last handshake."""

    def __init__(self, directory: Path, *, certificate: bool = True, resumes: bool = False) -> None:
        given = (str(directory / name) for name in ("server.crt", "server.key", "ca.crt"))
        self.server = server_context(*given, wants_certificates=True)
        self.client = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        if certificate:
            self.client.load_cert_chain(directory / "client.crt", directory / "client.key")
        self.session: ssl.SSLSession | None = None
        self.resumes = resumes
        if resumes:
            self.server.num_tickets = 1

    def shake_hands(self) -> tuple[float, float]:
        """CPU seconds of the server and of the client."""
        to_client, to_server, spent = ssl.MemoryBIO(), ssl.MemoryBIO(), [0.0, 0.0]
        server = self.server.wrap_bio(to_server, to_client, server_side=True)
        client = self.client.wrap_bio(to_client, to_server, server_hostname="relay", session=self.session)
        waiting = {0: server, 1: client}
        while waiting:
            for number, side in sorted(waiting.items(), reverse=True):
                begun = time.thread_time()
                try:
                    side.do_handshake()
                    del waiting[number]
                except ssl.SSLWantReadError:
                    pass
                spent[number] += time.thread_time() - begun
        if self.resumes:
            server.write(SMALL)
            client.read(1)  # with it the ticket
            assert client.session_reused is (self.session is not None)
            self.session = client.session
        return spent[0], spent[1]


# -- two processes -----------------------------------------------------------------------------------------------------


def in_threads(count: int, do: Callable[[], None]) -> None:
    """Call it so often, by as many threads as there are processors."""
    turns = iter(range(count))  # taking the next one is a single step of the interpreter

    def work() -> None:
        for _ in turns:
            do()

    threads = [threading.Thread(target=work) for _ in os.sched_getaffinity(0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def between_processes(directory: Path, count: int, *, certificate: bool) -> tuple[float, float, float]:
    """Seconds of all handshakes; processor seconds of the relay's side and of the clients'."""
    sides = Sides(directory, certificate=certificate)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:

        def serve() -> None:
            raw, _ = listener.accept()
            with sides.server.wrap_socket(raw, server_side=True) as connection:
                connection.sendall(SMALL)

        def call() -> None:
            raw = socket.create_connection(listener.getsockname())
            with sides.client.wrap_socket(raw, server_hostname="relay") as connection:
                assert connection.recv(1) == SMALL

        begun = time.monotonic()
        children = [in_child(partial(in_threads, count, do)) for do in (serve, call)]
        spent = [of_child(child) for child in children]
        return time.monotonic() - begun, spent[0], spent[1]


def in_child(act: Callable[[], None]) -> int:
    """Its process."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return child


def of_child(child: int) -> float:
    """The processor seconds that it has used when it ends."""
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit("a handshake failed")
    return used.ru_utime + used.ru_stime


def print_floor(count: int, rounds: int) -> None:
    print(f"| {count} handshakes | s | relay's side, CPU s | clients', CPU s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        make_certificates(Path(name), KEYS["P-256"])
        for told, certificate in (("certificates of both sides", True), ("a client without (a token)", False)):
            found = [between_processes(Path(name), count, certificate=certificate) for _ in range(rounds)]
            medians = (statistics.median(each) for each in zip(*found, strict=True))
            print(f"| {told} | {' | '.join(f'{median:.2f}' for median in medians)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, metavar="N", default=0)
    arguments = parser.parse_args()
    if arguments.processes:
        print(f"{ssl.OPENSSL_VERSION}, load average {os.getloadavg()[0]:.1f}\n")
        print_floor(arguments.processes, arguments.rounds)
        return
    with tempfile.TemporaryDirectory() as directory:
        kinds: dict[str, Sides] = {}
        for name, key in KEYS.items():
            where = Path(directory) / name
            where.mkdir()
            make_certificates(where, key)
            kinds[f"{name}, certificates of both sides"] = Sides(where)
            kinds[f"{name}, a client without (a token)"] = Sides(where, certificate=False)
            kinds[f"{name}, certificates, resumed"] = Sides(where, resumes=True)
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(arguments.rounds):
            for kind, sides in kinds.items():
                sides.shake_hands()
                spent = [sides.shake_hands() for _ in range(arguments.count)]
                found[kind].append((sum(one[0] for one in spent), sum(one[1] for one in spent)))
    print(f"{ssl.OPENSSL_VERSION}, load average {os.getloadavg()[0]:.1f}\n")
    print("| ms of the processor | the relay | the client |\n|---|---|---|")
    for kind, rounds in found.items():
        relay, client = (1000 * statistics.median(each) / arguments.count for each in zip(*rounds, strict=True))
        print(f"| {kind} | {relay:.2f} | {client:.2f} |")


if __name__ == "__main__":
    main()
