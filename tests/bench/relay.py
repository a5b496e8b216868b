"""What a relay costs with thousands of clients, and what they notice when it is killed.

    python tests/bench/relay.py [--clients 1000 5000] [--nodes 1000] [--changes 25] [--seconds 20] [--review-ms 2]

A simulated API server (api_simulation.py) has the cluster; the relay is a process of its own, the clients are real TLS
connections in another one, each following all collections from the versions that it has seen. Prints a table: each
number of clients first with a certificate, then with a token for each, which the relay has the API server review;
then each client has an address of its own, as agents have. Latency is from the
moment the API server sends a change until a client has it, on one machine for everything: the clients' own work counts,
too. So processor time tells more: resumed_cpu_s is the new relay's from its start until all have resumed, start_cpu_s
the part until it had read everything, clients_cpu_s what the clients took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.relayed.served import SERVED_IN, WATCH_PATH
from cni_calico.model.access import API_GROUP, KubernetesAccess
from cni_calico.relay.admission import TokenReviews
from cni_calico.relay.tokens import AUDIENCE, Accepted
from tests.bench.api_simulation import AGENT
from tests.deadlines import until
from tests.e2e.relays import make_certificates

ROOT = Path(__file__).resolve().parents[2]

TICK = os.sysconf("SC_CLK_TCK")
OPENING = 50
_BIND_ADDRESS_NO_PORT = 24  # Python does not name the option


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise ValueError("no VmRSS")


def ask(url: str) -> str:
    return str(urllib.request.urlopen(url, timeout=60).read().decode())


def seconds_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> float:
    begun = time.monotonic()
    until(condition, what, timeout_s, pause_s=0.02)
    sys.stderr.write(f"{what}: {time.monotonic() - begun:.1f} s\n")
    return time.monotonic() - begun


@lru_cache(maxsize=4096)
def read_event(line: bytes) -> tuple[str, int, float]:
    """Path, version, and when it was sent (0: it is no change); read once for all clients, who are not measured."""
    event = json.loads(line)
    metadata = event["object"]["metadata"]
    sent = metadata.get("labels", {}).get("sent-at") if event["type"] == "MODIFIED" else None
    return event["path"], int(metadata["resourceVersion"]), float(sent or 0)


def token_of(which: int) -> str:
    """One that says that it is for relays, as a projected token does."""
    claims = urlsafe_b64encode(json.dumps({"aud": [AUDIENCE], "sub": f"client {which}"}).encode()).decode().rstrip("=")
    return f"e30.{claims}.{'s' * 342}"


class Clients:
    """Many connections in one loop. Each keeps the version it has seen of every collection, and resumes from there."""

    def __init__(
        self, port: int, certificates: Path, positions: dict[str, int], count: int, *, tokens: bool = False
    ) -> None:
        self.context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self.tokens = tokens
        if not tokens:
            self.context.load_cert_chain(certificates / "client.crt", certificates / "client.key")
        self.context.check_hostname = False
        self.port = port
        self.positions = [dict(positions) for _ in range(count)]
        self.sockets: dict[int, tuple[int, ssl.SSLSocket]] = {}
        self.rests = [b""] * count
        self.state = ["closed"] * count
        self.waiting = list(range(count))
        self.retry_at = 0.0
        self.epoll = select.epoll()
        self.latencies: list[float] = []
        self.messages = self.events = self.refused = 0

    @property
    def streaming(self) -> int:
        return self.state.count("stream")

    def turn(self, timeout: float) -> None:
        now = time.monotonic()
        opening = len(self.state) - len(self.waiting) - self.streaming
        while self.waiting and opening < OPENING and now >= self.retry_at:
            opening += 1
            self.open(self.waiting.pop())
        for fd, _ in self.epoll.poll(timeout):
            if fd in self.sockets:
                self.attend(fd)

    def open(self, which: int) -> None:
        raw = socket.socket()
        raw.setblocking(False)
        if self.tokens:
            raw.setsockopt(socket.SOL_IP, _BIND_ADDRESS_NO_PORT, 1)
            raw.bind((f"127.{1 + which // 62500}.{which // 250 % 250}.{1 + which % 250}", 0))
        if raw.connect_ex(("127.0.0.1", self.port)) not in (0, 115):
            raw.close()
            self.lost(which)
            return
        wrapped = self.context.wrap_socket(raw, do_handshake_on_connect=False)
        self.state[which] = "handshake"
        self.sockets[wrapped.fileno()] = (which, wrapped)
        self.epoll.register(wrapped.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def lost(self, which: int) -> None:
        self.state[which] = "closed"
        self.waiting.append(which)
        self.retry_at = time.monotonic() + 0.05

    def attend(self, fd: int) -> None:
        which, wrapped = self.sockets[fd]
        try:
            if self.state[which] == "handshake":
                wrapped.do_handshake()
                places = "&".join("from=" + quote(f"{path}@{at}") for path, at in self.positions[which].items())
                shown = f"Authorization: Bearer {token_of(which)}\r\n" if self.tokens else ""
                wrapped.send(f"GET {WATCH_PATH}?{places} HTTP/1.1\r\nHost: x\r\n{shown}\r\n".encode())
                self.state[which] = "asked"
                self.epoll.modify(fd, select.EPOLLIN)
            while True:
                data = wrapped.recv(65536)
                if not data:
                    raise ConnectionResetError
                self.take(which, data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self.epoll.unregister(fd)
            wrapped.close()
            del self.sockets[fd]
            self.lost(which)

    def take(self, which: int, data: bytes) -> None:
        if self.state[which] == "asked":
            head, _, data = data.partition(b"\r\n\r\n")
            if b" 200 " not in head:
                self.refused += 1
                raise ConnectionResetError
            self.state[which] = "stream"
            self.rests[which] = b""
        now = time.time()
        self.messages += 1
        *lines, self.rests[which] = (self.rests[which] + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"{"):
                continue  # the size of a chunk
            path, version, sent = read_event(line)
            self.positions[which][path] = version
            if sent:
                self.events += 1
                self.latencies.append(now - sent)

    def run(self, condition: Callable[[], bool], seconds: float) -> float:
        begun = time.monotonic()
        while not condition() and time.monotonic() - begun < seconds:
            self.turn(0.02)
        return time.monotonic() - begun

    def close(self) -> None:
        for _, wrapped in self.sockets.values():
            wrapped.close()


@contextmanager
def process(*command: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env={**os.environ, **environ}) as running:
        try:
            yield running
        finally:
            running.kill()


def kubeconfig(url: str, directory: Path) -> str:
    path = directory / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return str(path)


def start_relay(url: str, port: int, certificates: Path, metrics: int) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        "KUBECONFIG": kubeconfig(url, certificates),
        "TYPHA_SERVERHOST": "127.0.0.1",
        "TYPHA_SERVERPORT": str(port),
        "TYPHA_SERVERCERTFILE": str(certificates / "server.crt"),
        "TYPHA_SERVERKEYFILE": str(certificates / "server.key"),
        "TYPHA_CAFILE": str(certificates / "ca.crt"),
        "TYPHA_CLIENTCN": "typha-client",
        "TYPHA_PROMETHEUSMETRICSENABLED": "true",
        "TYPHA_PROMETHEUSMETRICSHOST": "127.0.0.1",
        "TYPHA_PROMETHEUSMETRICSPORT": str(metrics),
        "TYPHA_HEALTHENABLED": "true",
        "TYPHA_HEALTHPORT": str(metrics + 1),
        "TYPHA_LOGSEVERITYSCREEN": "error",
        "TYPHA_MAXCONNECTIONSUPPERLIMIT": "20000",
        "PYTHONPATH": str(ROOT),
    }
    running = subprocess.Popen([sys.executable, "-m", "cni_calico.relay.main"], env=environ)

    def ready() -> bool:
        try:
            return ask(f"http://127.0.0.1:{metrics + 1}/readiness") == "ok\n"
        except OSError:
            return False

    seconds_until(ready, "the relay")
    return running


def listed(port: int, certificates: Path) -> tuple[dict[str, int], int, int]:
    """The version of each collection, and the size of all lists, whole and compressed."""
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    context.load_cert_chain(certificates / "client.crt", certificates / "client.key")
    positions, whole, packed = {}, 0, 0
    for path in SERVED_IN[API_GROUP]:
        for accept in ("identity", "gzip"):
            request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers={"Accept-Encoding": accept})
            data = urllib.request.urlopen(request, context=context, timeout=60).read()
            if accept == "gzip":
                packed += len(data)
            else:
                whole += len(data)
                positions[path] = int(json.loads(data)["metadata"]["resourceVersion"])
    return positions, whole, packed


def measure(count: int, arguments: argparse.Namespace, certificates: Path, *, tokens: bool) -> dict[str, Any]:
    api, port, metrics = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{api}"
    simulation = str(ROOT / "tests" / "bench" / "api_simulation.py")
    out: dict[str, Any] = {"clients": count, "with": "tokens" if tokens else "certificates"}
    with process(sys.executable, simulation, str(api), str(arguments.nodes), "10", "Never", str(arguments.review_ms)):
        seconds_until(lambda: answers(url), "the simulation")
        relay = start_relay(url, port, certificates, metrics)
        try:
            positions, out["lists_mb"], out["lists_packed_mb"] = listed(port, certificates)
            out["lists_mb"] /= 1e6
            out["lists_packed_mb"] /= 1e6
            seconds_until(lambda: int(ask(f"{url}/bench/watches")) >= len(SERVED_IN[API_GROUP]), "the watches")
            out["watches_before"] = int(ask(f"{url}/bench/watches"))
            clients = Clients(port, certificates, positions, count, tokens=tokens)
            empty_kb, cpu = rss_kb(relay.pid), cpu_s(relay.pid)
            out["connect_s"] = clients.run(lambda: clients.streaming == count, 300)
            out["handshake_ms"] = (cpu_s(relay.pid) - cpu) / count * 1000
            clients.run(lambda: False, 12)  # with at least one bookmark
            out["client_kb"] = (rss_kb(relay.pid) - empty_kb) / count
            out["relay_mb"] = rss_kb(relay.pid) / 1024
            tell(arguments, url, clients, relay, out)
            out["watches_after"] = int(ask(f"{url}/bench/watches"))
            clients.run(lambda: False, 12)  # all have the newest bookmark
            relay.send_signal(signal.SIGKILL)
            relay.wait()
            ask(f"{url}/bench/heartbeats?count=5&change=1")
            reviewed = int(ask(f"{url}/bench/reviews"))
            begun, of_clients = time.monotonic(), time.process_time()
            relay = start_relay(url, port, certificates, metrics)
            out["restart_s"] = time.monotonic() - begun
            out["start_cpu_s"] = cpu_s(relay.pid)
            expected = clients.events + 5 * count
            clients.run(lambda: clients.streaming == count and clients.events >= expected, 300)
            out["resumed_s"] = time.monotonic() - begun
            out["resumed_cpu_s"] = cpu_s(relay.pid)
            out["clients_cpu_s"] = time.process_time() - of_clients
            out["missed"] = expected - clients.events
            out["reviews_resuming"] = int(ask(f"{url}/bench/reviews")) - reviewed
            text = ask(f"http://127.0.0.1:{metrics}/metrics")
            out["lists_after_restart"] = text.count('calico_relay_requests_total{kind="list"}')
            out["refused"] = clients.refused
            clients.close()
        finally:
            relay.kill()
            relay.wait()
    return out


def review_all(count: int, arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """As many reviews as a new relay needs, each of another agent, with nothing else to do."""
    api = free_port()
    url = f"http://127.0.0.1:{api}"
    simulation = str(ROOT / "tests" / "bench" / "api_simulation.py")
    with process(sys.executable, simulation, str(api), "1", "1", "Never", str(arguments.review_ms)):
        seconds_until(lambda: answers(url), "the simulation")
        api_server = KubernetesAPI(KubernetesAccess(kubeconfig=kubeconfig(url, directory)))
        reviews = TokenReviews(api_server, Accepted(frozenset({AGENT})), lambda: None)
        shown = [(token_of(i), f"10.{i >> 8}.{i & 255}.1") for i in range(count)]
        cpu, begun = time.process_time(), time.monotonic()
        for token, address in shown:
            reviews.why_not(token, address, fresh_s=60)
        until(lambda: reviews.reviews == count, "all reviews", 300)
        ended, spent = time.monotonic() - begun, time.process_time() - cpu
        accepted = sum(reviews.why_not(token, address, fresh_s=600) == "" for token, address in shown)
        reviews.close()
    return {"reviews": count, "accepted": accepted, "seconds": ended, "cpu_ms_each": spent / count * 1000}


def answers(url: str) -> bool:
    """Whether the simulation does."""
    try:
        return ask(f"{url}/bench/heartbeats?count=0") != ""
    except OSError:
        return False


def tell(
    arguments: argparse.Namespace, url: str, clients: Clients, relay: subprocess.Popen[bytes], out: dict[str, Any]
) -> None:
    """A constant rate of changes, each of which every client is told."""
    clients.latencies.clear()
    clients.messages = clients.events = 0
    cpu, begun, sent = cpu_s(relay.pid), time.monotonic(), 0
    while (passed := time.monotonic() - begun) < arguments.seconds:
        due = int(passed * arguments.changes) - sent
        if due > 0:
            ask(f"{url}/bench/heartbeats?count={due}&change=1")
            sent += due
        clients.turn(0.01)
    expected = sent * len(clients.state)
    clients.run(lambda: clients.events >= expected, 60)
    spent = cpu_s(relay.pid) - cpu
    out["events"] = clients.events
    out["cpu_us_event"] = spent / max(1, clients.events) * 1e6
    out["cpu_us_message"] = spent / max(1, clients.messages) * 1e6
    out["cores"] = spent / (time.monotonic() - begun)
    ordered = sorted(clients.latencies)
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        out[f"latency_{name}_s"] = ordered[int(part * (len(ordered) - 1))] if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--changes", type=float, default=25)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--review-ms", type=float, default=2)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as directory:
        make_certificates(Path(directory))
        found = [
            measure(count, arguments, Path(directory), tokens=tokens)
            for count in arguments.clients
            for tokens in (False, True)
        ]
        alone = [review_all(count, arguments, Path(directory)) for count in arguments.clients]
    show(found)
    show(alone)


def show(found: list[dict[str, Any]]) -> None:
    for name in found[0]:
        cells = [f"{one[name]:.3f}" if isinstance(one[name], float) else str(one[name]) for one in found]
        sys.stdout.write(f"{name:22}" + "".join(f"{cell:>14}" for cell in cells) + "\n")


if __name__ == "__main__":
    main()
