"""A node with workloads and the policy engine on it, and packets that tell what is let through.

Rule: a verdict is what arrives: a UDP packet with a word of its own, seen by a raw socket of the receiver. That one
does not arrive is known when a later packet of the host (which is never policed) has.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar, NamedTuple, Protocol

from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.interface import Versioned, Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.faults import install_from_environment
from cni_calico.kernel import netns
from cni_calico.log import Log
from cni_calico.model.keys import HandleKey, HandleList, ListKey, ResourceKey, ResourceList
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.settings import NodeSettings, parse_settings
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.feed import starting
from cni_calico.nodeagent.policing.report.in_force import RulesListener
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.recording.rules import RulesTeller
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.namespaces import Namespace, host_namespace, namespace
from tests.unrecorded import UNRECORDED

OVERTAKEN_S = 1.0
PORTS = 60000
NODE = "n1"
# of one processor's queue: when the kernel puts work off, the first may overtake what is still on its way to the host;
# the second cannot
FIRST_MARK, LAST_MARK = b"first-", b"last-"
ARRIVES_S, TRIES = 4.0, 5
DENY_B = {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
ALLOW_80 = {
    "selector": "app == 'b'",
    "order": 10,
    "types": ["Ingress"],
    "ingress": [
        {
            "action": "Allow",
            "protocol": "UDP",
            "source": {"selector": "app == 'a'"},
            "destination": {"ports": [80, "8000:8010"]},
        }
    ],
}
RCVBUFFORCE, BUFFER = 33, 64 << 20  # nothing is lost for want of space; Python does not name the option
GATEWAY, GATEWAY6 = "169.254.1.1", "fe80::1"


def private_settings(root: Path) -> NodeSettings:
    """Files of the agent only below ``root``."""
    return parse_settings({"CALICO_RUN_DIR": str(root / "run"), "CALICO_STATE_DIR": str(root / "state")})


def documented_removal() -> str:
    """The command of the way back in docs/node.md, which removes our policies from the kernel."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "node.md").read_text()
    (command,) = re.findall(r"(?m)^ +(printf .*calico-policy.* \| nft -f -)$", text)
    return str(command)


@dataclass
class Workload:
    name: str
    ns: Namespace
    interface: str
    addresses: tuple[str, ...]
    document: dict[str, Any] = field(default_factory=dict)

    def address(self, version: int = 4) -> str:
        return next(a for a in self.addresses if ip_address(a).version == version)


def socket_in(ns: Namespace, *arguments: int) -> socket.socket:
    """A socket that belongs to a namespace, made by this thread, which comes back."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(ns.path, os.O_RDONLY | os.O_CLOEXEC)
        netns.enter(there)
        try:
            return socket.socket(*arguments)
        finally:
            netns.enter(here)
            os.close(there)
    finally:
        os.close(here)


def saved_by(ns: Namespace, program: str) -> str:
    """What iptables-legacy-save lists: it looks for the rules' sets afterwards, and fails if one has gone since."""
    done: CompletedProcess[str] = until(
        lambda: (run := ns.run(program, check=False)).returncode == 0 and run, f"{program} lists its rules", 30
    )
    return done.stdout


class SentPacket(NamedTuple):
    """``connection``: source, destination, protocol, ports. ``incoming`` and ``outgoing``: interfaces, "" for the host
    itself. ``policed``: the engine said before and after that policies are in force. ``states``: of the documents.
    """

    connection: tuple[bytes, bytes, int, int, int]
    incoming: str
    outgoing: str
    arrived: bool
    policed: bool
    states: int = 0


class SentStream(NamedTuple):
    """So many packets to each of two ports, from ``ports`` different ports."""

    source: bytes
    destination: bytes
    allowed: int
    forbidden: int
    sent: int
    ports: int
    policed: bool


class Watcher(Protocol):
    """Is told what a lab writes, and which packets it has sent."""

    def note_written(self, writes: Sequence[Write]) -> None: ...

    def note_sent(self, packet: SentPacket) -> None: ...

    def note_stream(self, stream: SentStream) -> None: ...


# (wakes the engine, set when it is to end) -> who is told which rules are in force
Beside = Callable[[Callable[[], None], Stopping], RulesListener]


class Lab:
    """One node. ``put`` and ``remove`` write to its datastore; ``start`` runs the engine in a process of its own.

    ``always``: FELIX_ variables that every engine gets. ``watched_by``: who looks at each lab; its engines record then.
    """

    always: ClassVar[dict[str, str]] = {}
    watched_by: ClassVar[Callable[[Lab], AbstractContextManager[Watcher]] | None] = None

    def __init__(self, host: Namespace, root: Path, stack: ExitStack) -> None:
        self.host = host
        self.root = root
        self.workloads: dict[str, Workload] = {}
        self._stack = stack
        self._store = LocalStore(str(root / "store.db"))
        stack.callback(self._store.close)
        self._listening: dict[tuple[str, int], socket.socket] = {}
        self._senders: dict[tuple[str, int], socket.socket] = {}
        self._count = 0
        self.pid = 0
        self.limit_s = 300  # so long the engine lives at most
        self.group: Path | None = None  # the control group in which the engine runs, a process of its own then
        self.sure_ways: dict[str, tuple[Namespace, int]] = {}  # from where, and to which port, a packet always arrives
        self.tunnels: Tunnels | None = Tunnels()  # None: nothing has been read, so that the engine is not told
        self.pools: frozenset[Network] = frozenset()
        self.open_context = context_of(root)
        self.beside: Beside | None = None  # starts what else the agent runs, in the engine's process
        self.watcher: Watcher | None = None

    # -- records ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "", **labels: str) -> None:
        metadata: dict[str, Any] = {"name": name, "uid": f"uid-{kind}-{namespace}-{name}"}
        if namespace:
            metadata["namespace"] = namespace
        if labels:
            metadata["labels"] = {key.replace("__", "/"): value for key, value in labels.items()}
        document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
        self.put_document(ResourceKey(kind, name, namespace), document)

    def put_document(self, key: ResourceKey, document: dict[str, Any]) -> None:
        self.write((Write.put(key, document),))

    def write(self, writes: Sequence[Write]) -> None:
        if self.watcher is not None:
            self.watcher.note_written(writes)
        self._store.commit(writes, Deadline.after(30))

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        self.write((Write.remove(ResourceKey(kind, name, namespace)),))

    def documents(self, kind: str, namespace: str = "") -> list[dict[str, Any]]:
        """Those that are stored."""
        return [dict(item.value) for item in self._store.list(ResourceList(kind, namespace), Deadline.after(10)).items]

    def stored(self, listing: ListKey) -> tuple[Versioned, ...]:
        return tuple(self._store.list(listing, Deadline.after(10)).items)

    def handles(self) -> list[str]:
        """The handles under which addresses are held."""
        found = self._store.list(HandleList(), Deadline.after(10)).items
        return [item.key.handle_id for item in found if isinstance(item.key, HandleKey)]

    # -- workloads ----------------------------------------------------------------------------------------------------

    def add(self, name: str, *addresses: str, namespace_name: str = "default", **labels: str) -> Workload:
        """A workload with its interface, routes and record; its profile is ``kns.<namespace>``."""
        workload = self.connect(name, f"cali{name}", *addresses)
        self.put_endpoint(workload, namespace_name, **labels)
        return workload

    def connect(self, name: str, interface: str, *addresses: str) -> Workload:
        """A workload with its interface and routes."""
        ns = self._stack.enter_context(namespace(f"w{name}"))
        self.workloads[name] = Workload(name, ns, interface, addresses)
        self.plug(name)
        return self.workloads[name]

    def plug(self, name: str) -> None:
        """Give a workload its interface and routes, with which it begins, or which were taken away from it."""
        workload = self.workloads[name]
        ns = workload.ns
        self.host.do("link", "add", workload.interface, "type", "veth", "peer", "name", "eth0", "netns", ns.name)
        self.host.do("link", "set", workload.interface, "addrgenmode", "none", "address", "ee:ee:ee:ee:ee:ee", "up")
        ns.do("link", "set", "eth0", "addrgenmode", "none", "up")
        for address in workload.addresses:
            plain, six = str(ip_address(address)), ":" in address
            gateway, family = (GATEWAY6, "-6") if six else (GATEWAY, "-4")
            ns.do("addr", "add", f"{plain}/{128 if six else 32}", "dev", "eth0", *(("nodad",) if six else ()))
            ns.do("neigh", "add", gateway, "lladdr", "ee:ee:ee:ee:ee:ee", "dev", "eth0")
            ns.do(family, "route", "add", gateway, "dev", "eth0", *(() if six else ("scope", "link")))
            ns.do(family, "route", "add", "default", "via", gateway, "dev", "eth0")
            mac = ns.link("eth0")
            assert mac is not None
            self.host.do("neigh", "add", plain, "lladdr", mac["address"], "dev", workload.interface)
            self.host.do(family, "route", "add", plain, "dev", workload.interface)

    def put_endpoint(self, workload: Workload, namespace_name: str = "default", **labels: str) -> None:
        workload.document = workload.document or {
            "orchestrator": "k8s",
            "node": NODE,
            "pod": workload.name,
            "containerID": f"c{workload.name}",
            "endpoint": "eth0",
            "ipNetworks": [f"{a}/{128 if ':' in a else 32}" for a in workload.addresses],
            "profiles": [f"kns.{namespace_name}"],
            "interfaceName": workload.interface,
        }
        given = {"projectcalico__namespace": namespace_name, "projectcalico__orchestrator": "k8s"}
        named = {f"projectcalico.org__{key.split('__')[1]}": value for key, value in given.items()}
        key = f"{NODE}-k8s-{workload.name}-eth0"
        self.put("WorkloadEndpoint", key, workload.document, namespace_name, **named, **labels)

    def put_profile(self, name: str, *, allow: bool = True, **labels: str) -> None:
        rules = [{"action": "Allow"}] if allow else []
        self.put("Profile", name, {"ingress": rules, "egress": rules, "labelsToApply": labels})

    # -- the engine ---------------------------------------------------------------------------------------------------

    def start(self, **environ: str) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            recorded = {"FELIX_FLOWS": "Enabled"} if self.watcher is not None else UNRECORDED
            environ = {**recorded, **self.always, **environ}
            if self.group is not None:
                (self.group / "cgroup.procs").write_text("0")
                execute_engine(self.host, self.root, environ, self.limit_s)
            told = self.open_context, self.tunnels, self.limit_s, self.beside, self.pools
            run_engine(self.host, self.root, environ, *told)

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        if not self.pid:
            return 0
        os.kill(self.pid, with_signal)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def standing(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.root / "standing.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if found.get("pid") == self.pid else {}

    def until_in_force(self, **counts: int) -> dict[str, Any]:
        """Until the engine says so, with these counts (policies, endpoints, ...)."""

        def reached() -> dict[str, Any] | None:
            said = self.standing()
            good = said.get("in_force") and all(said["counts"][name] == count for name, count in counts.items())
            return said if good else None

        try:
            found: dict[str, Any] = until(reached, f"policies in force: {counts}")
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.standing()}\n{self.log()}") from None
        return found

    def log(self) -> str:
        try:
            return (self.root / "engine.log").read_text()
        except OSError:
            return ""

    def ruleset(self) -> str:
        """The packet filter's rules, as its own program lists them, without what they have counted."""
        if self.always.get("FELIX_NFTABLESMODE") == "Disabled":
            saved = (saved_by(self.host, f"{name}tables-legacy-save") for name in ("ip", "ip6"))
            return re.sub(r"\[\d+:\d+\]|^#.*", "", "".join(saved), flags=re.MULTILINE)
        return self.host.run("nft", "-s", "list", "ruleset").stdout

    # -- packets ------------------------------------------------------------------------------------------------------

    def receiver(self, name: str, version: int) -> socket.socket:
        """Sees every UDP packet that a workload gets."""
        workload, key = self.workloads[name], (name, version)
        if key not in self._listening:
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            opened = socket_in(workload.ns, family, socket.SOCK_RAW, socket.IPPROTO_UDP)
            opened.settimeout(ARRIVES_S)
            opened.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
            self._stack.callback(opened.close)
            self._listening[key] = opened
        return self._listening[key]

    def _sender(self, ns: Namespace, name: str, version: int) -> socket.socket:
        key = (name, version)
        if key not in self._senders:
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            opened = socket_in(ns, family, socket.SOCK_DGRAM)
            self._stack.callback(opened.close)
            self._senders[key] = opened
        return self._senders[key]

    def passes(self, source: str, destination: str, port: int, *, version: int = 4, sport: int = 0) -> bool:
        """Whether a UDP packet of one workload reaches another, as the first of its connection."""
        sender, receiver = self.workloads[source], self.workloads[destination]
        self.receiver(destination, version)
        self._count += 1
        word = f"probe{self._count}".encode()
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        was_policed = self.is_policed
        with socket_in(sender.ns, family, socket.SOCK_DGRAM) as probe:  # a port of its own: a new connection
            probe.bind((sender.address(version), sport))
            probe.sendto(word, (receiver.address(version), port))
            sport = probe.getsockname()[1]
        arrived = self.arrivals(destination, word, version) > 0
        if self.watcher is not None:
            ends = (ip_address(one.address(version)).packed for one in (sender, receiver))
            connection = *ends, socket.IPPROTO_UDP, sport, port
            policed = was_policed and self.is_policed
            ways = sender.interface, receiver.interface
            self.watcher.note_sent(SentPacket(connection, *ways, arrived, policed))
        return arrived

    @property
    def is_policed(self) -> bool:
        """Whether an engine that records says so now; False also where nobody asks."""
        return self.watcher is not None and bool(self.standing().get("in_force"))

    def arrivals(self, name: str, word: bytes, version: int = 4) -> int:
        """How many packets that end in this word, all sent already, reach a workload whose receiver is open.

        They wait in the queue of the processor that sent them, where what another one sends does not wait: that none
        has come is known when markers have gone through each processor's.
        """
        if count := self._followed(name, word, version):
            return count
        processors = os.sched_getaffinity(0)
        try:
            for processor in sorted(processors):
                os.sched_setaffinity(0, {processor})
                count += self._followed(name, word, version)
        finally:
            os.sched_setaffinity(0, processors)
        return count

    def _followed(self, name: str, word: bytes, version: int) -> int:
        """Markers are sent again: on a busy machine the kernel drops what waits for a neighbour for too long."""
        receiver, arrived = self.workloads[name], self.receiver(name, version)
        markers = (FIRST_MARK + word, LAST_MARK + word)
        count = 0
        for marker in markers:
            for last in (*[False] * (TRIES - 1), True):
                self._sender(self.host, "host", version).sendto(marker, (receiver.address(version), 9))
                try:
                    while not (data := arrived.recv(4096)).endswith(marker):
                        count += data.endswith(word) and not data.endswith(markers)
                except TimeoutError:
                    if last:
                        raise
                else:
                    break
        return count

    def until_passes(self, source: str, destination: str, port: int, wanted: bool = True) -> None:
        what = f"{source} {'reaches' if wanted else 'no longer reaches'} {destination}:{port}"
        try:
            until(lambda: self.passes(source, destination, port) == wanted, what, pause_s=0.001)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.standing()}\n{self.log()}\n{self.ruleset()}") from None


def context_of(root: Path) -> Callable[[Log], Context]:
    return lambda log: Context(private_settings(root), LocalStore(str(root / "store.db")), log, lambda _: True)


def execute_engine(host: Namespace, root: Path, environ: dict[str, str], limit_s: int) -> None:
    """The same in a program of its own, so that memory is measured: a fork shares that of the tests, ten times as much,
    and copies as much of it as its garbage collections happen to look at. Never returns.
    """
    limits = starting.START_BYTES, starting.START_SELECTORS
    told = json.dumps([host.name, str(root), environ, limit_s, limits])
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "tests.netns.policing.engine_alone", told])


def run_engine(
    host: Namespace,
    root: Path,
    environ: dict[str, str],
    open_context: Callable[[Log], Context],
    tunnels: Tunnels | None,
    limit_s: int,
    beside: Beside | None = None,
    pools: frozenset[Network] = frozenset(),
) -> None:
    """Never returns."""
    code = 99
    log_file = str(root / "engine.log")
    try:
        stopping = Stopping()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        signal.alarm(limit_s)
        netns.enter(os.open(host.path, os.O_RDONLY))
        context = open_context(Log("debug", log_file, stderr=False))

        def tell() -> None:
            said = {**engine.standing.fields(), "pid": os.getpid(), "failing": engine.standing.failing}
            said["reports"] = engine.standing.reports
            target = root / "standing.json"
            new = target.with_suffix(".new")
            new.write_text(json.dumps(said))
            new.rename(target)

        felix = parse_felix({"FELIX_ENDPOINTSTATUSPATHPREFIX": str(root), **environ}).settings
        engine = PolicyEngine(context, NODE, tell, felix)
        if beside is not None:
            listener = beside(engine.wake, stopping)
            engine.rules.listeners = (listener,)
            engine.rules.records = listener.staged if isinstance(listener, RulesTeller) else None
        if tunnels is not None:
            engine.use(felix, tunnels, pools)
        install_from_environment(environ)
        engine.run(stopping)
        code = 0
    except BaseException:
        with open(log_file, "a") as file:
            traceback.print_exc(file=file)
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


@contextmanager
def lab(root: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        made = Lab(stack.enter_context(host_namespace()), root, stack)
        stack.callback(made.stop, signal.SIGKILL)
        if Lab.watched_by is not None:
            made.watcher = stack.enter_context(Lab.watched_by(made))
        yield made


@dataclass
class Counts:
    """``sent`` of each of the two kinds; ``missing``: which of the allowed ones have not arrived, counted from 0."""

    sent: int = 0
    allowed_arrived: int = 0
    forbidden_arrived: int = 0
    missing: list[int] = field(default_factory=list)


@contextmanager
def traffic(lab: Lab, source: str, destination: str, *, allowed: int, forbidden: int) -> Iterator[Counts]:
    """New connections to both ports, as fast as they go, in a thread; counted when the block has ended.

    What has arrived is taken as it comes: a socket's memory is full after some 20,000 packets, probes' included. The
    last of the allowed are waited for: a packet in one processor's queue is overtaken by those that another one sends.
    """
    sender, receiver = lab.workloads[source], lab.workloads[destination]
    counts, ending = Counts(), threading.Event()
    arrived = socket_in(receiver.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    arrived.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
    out = socket_in(sender.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    sure_from, sure_port = lab.sure_ways.get(destination, (lab.host, 9))
    was_policed = lab.is_policed
    own = socket_in(sure_from, socket.AF_INET, socket.SOCK_DGRAM)

    ports: set[int] = set()

    def take(data: bytes) -> None:
        port = int.from_bytes(data[22:24], "big")
        if data.endswith(b"flow"):
            if port == allowed:
                counts.allowed_arrived += 1
                ports.add(int.from_bytes(data[20:22], "big"))
            counts.forbidden_arrived += port == forbidden

    def take_all() -> None:
        with suppress(BlockingIOError):
            while True:
                take(arrived.recv(2048, socket.MSG_DONTWAIT))

    def send() -> None:
        while not ending.is_set():
            take_all()
            sport = 1024 + counts.sent % PORTS
            ports.discard(sport)
            for port in (allowed, forbidden):
                data = sport.to_bytes(2, "big") + port.to_bytes(2, "big") + (12).to_bytes(2, "big") + bytes(2) + b"flow"
                out.sendto(data, (receiver.address(), 0))
            counts.sent += 1
            ending.wait(0.0005)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield counts
    finally:
        ending.set()
        thread.join()
        own.sendto(b"last", (receiver.address(), sure_port))
        arrived.settimeout(10)
        while not (data := arrived.recv(2048)).endswith(b"last"):
            take(data)
        arrived.settimeout(OVERTAKEN_S)
        with suppress(TimeoutError):
            while counts.allowed_arrived < counts.sent:
                take(arrived.recv(2048))
        last = range(max(0, counts.sent - PORTS), counts.sent)
        counts.missing = [number for number in last if 1024 + number % PORTS not in ports][:100]
        for opened in (arrived, out, own):
            opened.close()
        if lab.watcher is not None:
            ends = (ip_address(one.address()).packed for one in (sender, receiver))
            lab.watcher.note_stream(SentStream(*ends, allowed, forbidden, counts.sent, PORTS, was_policed))
