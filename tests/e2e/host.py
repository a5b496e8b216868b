"""CNI calls as a runtime makes them, and what they leave behind.

Rule: a call runs in a namespace that plays the host, either in a forked child through ``serve`` (fault points can be
scripted) or through an executable. What is left over is read with ``ip`` and from the store, never from the code under
test.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_calico import faults
from cni_calico.cni.answer import answer_error
from cni_calico.cni.environment import parse_call
from cni_calico.cni.versions import CURRENT
from cni_calico.errors import CalicoError
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import (
    AffinityList,
    BlockList,
    HandleList,
    ListKey,
    ResourceKey,
    ResourceList,
    covers,
    etcd_path,
    parse_path,
)
from cni_calico.plugin.call.client import call_server
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.shim import socket_path
from cni_calico.plugin.commands import serve as serve_plugin
from cni_calico.plugin.ipam.commands import serve as serve_ipam
from tests.contract.etcd_process import Member
from tests.deadlines import until
from tests.e2e import front, records
from tests.e2e.forks import Forking, Forks, forks_in
from tests.netns.namespaces import Killed, Namespace

_SERVER = (sys.executable, "-m", "cni_calico.nodeagent.main", "-cni-server")
POOLS = {"pool4": ("10.65.0.0/16", 26), "pool6": ("fd00:65::/112", 122)}


@dataclass
class Reply:
    """What a call answered: exit status and parsed stdout (None when there was no output)."""

    rc: int
    document: Any

    @property
    def ok(self) -> bool:
        return self.rc == 0


@dataclass
class Node:
    """A host namespace with a datastore, a state directory and one network configuration."""

    host: Namespace
    root: Path
    datastore: DatastoreConfig
    nodename: str = "node1"
    overrides: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    bin_dir: Path | None = None  # frozen executables; None: serve() in a forked child
    timeout_s: int = 30
    apart: bool = False  # a ForkedServer does not see its callers' state and log
    forks: Forks | Forking | None = (
        None  # calls and dumps in its children; for etcd, where a process per call takes its time
    )

    def conf(self, **changes: Any) -> dict[str, Any]:
        conf: dict[str, Any] = {
            "cniVersion": "1.1.0",
            "name": "calnet",
            "type": "calico",
            "nodename": self.nodename,
            "mtu": 1450,
            "log_level": "info",
            "log_file_path": str(self.root / "cni.log"),
            "ipam": {"type": "calico-ipam"},
            "ipam_lock_file": str(self.root / "run" / "ipam.lock"),
            **datastore_keys(self.datastore),
        }
        return {key: value for key, value in {**conf, **self.overrides, **changes}.items() if value is not None}

    def env(self, command: str, container: str, netns: str, ifname: str, args: str) -> dict[str, str]:
        return {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": netns,
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(self.bin_dir or "/opt/cni/bin"),
            "CNI_ARGS": args,
            "PATH": os.environ["PATH"],
            "CALICO_RUN_DIR": str(self.root / "run"),
            "CALICO_STATE_DIR": str(self.root / "state"),
            **self.environ,
        }

    def call(
        self,
        command: str,
        container: str,
        netns: str = "",
        *,
        ifname: str = "eth0",
        args: str = "",
        fault: str = "",
        plugin: str = "calico",
        stdin: bytes | None = None,
        **changes: Any,
    ) -> Reply:
        """One call; Killed when a fault killed it."""
        environ = {**self.env(command, container, netns, ifname, args), "CALICO_FAULT": fault}
        data = json.dumps(self.conf(**changes)).encode() if stdin is None else stdin
        if self.bin_dir is None and self.forks is not None:
            rc, out = self.forks.call(_serve, plugin, environ, data, timeout_s=self.timeout_s)
        elif self.bin_dir is None and self.datastore.type == "local":
            rc, out = self.host.call(_serve, plugin, environ, data, timeout_s=self.timeout_s)
        else:
            rc, out = self._execute(plugin, environ, data)
        return Reply(rc, json.loads(out) if out.strip() else None)

    def _execute(self, plugin: str, environ: Mapping[str, str], data: bytes) -> tuple[int, str]:
        """An executable: of the bundle, or with the modules as they are."""
        directory = self.bin_dir if self.bin_dir is not None else front.executables()
        argv = ["nsenter", f"--net={self.host.path}", str(directory / plugin)]
        environ = {name: value for name, value in environ.items() if value}
        done = subprocess.run(argv, input=data, env=dict(environ), capture_output=True, timeout=self.timeout_s)
        if done.returncode < 0 or done.returncode > 128:
            raise Killed(f"{plugin} ended with {done.returncode}")
        return done.returncode, done.stdout.decode()

    # -- the resident server ------------------------------------------------------------------------------------------

    @contextmanager
    def server(
        self, *, fault: str = "", wrap: Sequence[str] = (), program: Sequence[str] = _SERVER
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A resident server in the host's namespace; ``wrap`` stands before its command line."""
        argv = ["nsenter", f"--net={self.host.path}", *wrap, *program]
        environ = {**os.environ, "CALICO_RUN_DIR": str(self.root / "run"), "CALICO_FAULT": fault}
        with open(self.root / "server.log", "ab") as log:
            process = subprocess.Popen(argv, env=environ, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self.await_server(process)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def await_server(self, process: subprocess.Popen[bytes]) -> None:
        """Until it accepts connections."""
        path = str(self.root / "run" / "cni.sock")

        def accepts() -> bool:
            assert process.poll() is None, (self.root / "server.log").read_text()
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(path) == 0

        until(accepts, "the server accepts connections", 60)

    def metrics(self) -> dict[str, float]:
        """The server's numbers."""
        answer = call_server(str(self.root / "run" / "cni.sock"), "metrics", {}, b"")
        assert answer is not None
        lines = (line.rsplit(" ", 1) for line in answer[1].decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    # -- what is stored -----------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Every stored document by its etcd key."""
        if self.datastore.type == "local":
            return records.dump(self.datastore)
        with self._forking() as forks:
            return dict(forks.call(records.dump, self.datastore))

    def put(self, documents: Mapping[str, Any]) -> None:
        """Store documents by etcd key; None removes."""
        if self.datastore.type == "local":
            records.put(self.datastore, documents)
            return
        with self._forking() as forks:
            forks.call(records.put, self.datastore, documents)

    def raw(self) -> dict[str, bytes]:
        """Every stored value by its etcd key, as it is."""
        if self.datastore.type == "local":
            return records.read_raw(self.datastore)
        assert self.forks is not None
        return dict(self.forks.call(records.read_raw, self.datastore))

    def spoil(self, path: str, value: bytes) -> None:
        """Replace a stored value by what no backend would write."""
        if self.datastore.type == "local":
            records.write_raw(self.datastore, path, value)
        else:
            assert self.forks is not None
            self.forks.call(records.write_raw, self.datastore, path, value)

    @contextmanager
    def _forking(self) -> Iterator[Forks | Forking]:
        """What works on etcd: this process uses no gRPC there."""
        if self.forks is not None:
            yield self.forks
            return
        with forks_in(self.host) as forks:
            yield forks

    def apply(self, kind: str, name: str, spec: Mapping[str, Any], namespace: str = "") -> None:
        metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-11-20T12:00:00Z"}
        document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": dict(spec)}
        self.put({etcd_path(ResourceKey(kind, name, namespace)): document})

    def apply_cluster(self) -> None:
        """What says that the cluster takes requests."""
        self.apply("ClusterInformation", "default", {"clusterGUID": "0" * 32, "datastoreReady": True})

    def apply_pools(self) -> None:
        self.apply_cluster()
        for name, (cidr, size) in POOLS.items():
            self.apply("IPPool", name, {"cidr": cidr, "blockSize": size, "nodeSelector": "all()"})

    def records(self, listing: ListKey) -> dict[str, Any]:
        """Stored documents of a listing by etcd key."""
        return select(self.dump(), listing)

    def taken(self) -> dict[str, str]:
        """address -> handle of every allocated address, read from the raw blocks."""
        return taken_in(self.dump())

    def handles(self) -> dict[str, Any]:
        return self.records(HandleList())

    def endpoints(self) -> list[Any]:
        return list(self.records(ResourceList("WorkloadEndpoint")).values())

    def affinities(self) -> dict[str, Any]:
        return self.records(AffinityList())

    # -- what is left over --------------------------------------------------------------------------------------------

    def leftovers(self) -> dict[str, Any]:
        """Everything that must be gone once every container is; empty when nothing leaked."""
        stored = self.dump()
        endpoints = select(stored, ResourceList("WorkloadEndpoint")).values()
        links = sorted(name for name in self.host.link_names() if name.startswith("cali"))
        routes = [route for version in (4, 6) for route in self.host.routes(version)] if links else []  # go with those
        return {
            name: value
            for name, value in {
                "links": links,
                "routes": [route for route in routes if str(route.get("dev", "")).startswith("cali")],
                "addresses": taken_in(stored),
                "handles": select(stored, HandleList()),
                "endpoints": [endpoint["metadata"]["name"] for endpoint in endpoints],
                "intents": self.intents(),
                "files": [str(p) for p in self.root.rglob("*.new")],
            }.items()
            if value
        }

    def intents(self) -> list[str]:
        return [path.name for path in (self.root / "state" / "cni" / "pending-del").glob("*.json")]


def added(node: Node, container: str, pod: Namespace, **options: Any) -> Reply:
    reply = node.call("ADD", container, pod.path, **options)
    assert reply.ok, reply
    return reply


def addresses(reply: Reply) -> list[str]:
    return [ip["address"] for ip in reply.document["ips"]]


def cleaned(node: Node, container: str, **options: Any) -> None:
    reply = node.call("DEL", container, "", **options)
    assert reply.ok, reply
    assert not node.leftovers()


@dataclass
class EtcdNode(Node):
    """A node whose etcd can be stopped and started."""

    etcd: Member | None = None

    def stop_etcd(self) -> None:
        assert self.etcd is not None
        self.etcd.stop()

    def start_etcd(self) -> None:
        assert self.etcd is not None
        self.etcd.start(f"{self.etcd.name}={self.etcd.peer_url}", "existing")
        self.etcd.wait_serving()


@contextmanager
def etcd_in(
    host: Namespace, directory: Path, *, scheme: str = "http", arguments: Sequence[str] = ()
) -> Iterator[Member]:
    """One etcd on the loopback of a namespace."""
    prefix = ("nsenter", f"--net={host.path}")
    member = Member(
        "one", f"{scheme}://127.0.0.1:2379", "http://127.0.0.1:2380", directory, arguments=arguments, prefix=prefix
    )
    member.start(f"one={member.peer_url}")
    try:
        member.wait_serving()
        yield member
    finally:
        member.stop()


def select(stored: Mapping[str, Any], listing: ListKey) -> dict[str, Any]:
    """The documents of a listing."""
    keys = {path: parse_path(path) for path in stored}
    return {path: stored[path] for path, key in keys.items() if key is not None and covers(listing, key)}


def taken_in(stored: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for block in select(stored, BlockList()).values():
        base = ipaddress.ip_network(block["cidr"])[0]
        for ordinal, index in enumerate(block["allocations"]):
            if index is not None:
                found[str(base + ordinal)] = block["attributes"][index]["handle_id"]
    return found


def datastore_keys(config: DatastoreConfig) -> dict[str, Any]:
    """The configuration keys that name a datastore."""
    if config.type == "local":
        return {"datastore_type": "local", "datastore_path": config.path}
    return {
        "datastore_type": "etcdv3",
        "etcd_endpoints": ",".join(config.etcd_endpoints),
        "etcd_key_file": config.etcd_key_file,
        "etcd_cert_file": config.etcd_cert_file,
        "etcd_ca_cert_file": config.etcd_ca_cert_file,
    }


def _serve(plugin: str, environ: dict[str, str], stdin: bytes) -> tuple[int, str]:
    """What the executable does with a call, without its start: to the server if one listens, else right here."""
    faults.install_from_environment(environ)
    served = call_server(socket_path(environ), plugin, environ, stdin)
    if served is not None:
        return served[0], served[1].decode()
    try:
        call = parse_call(environ, stdin)
    except CalicoError as e:
        answer = answer_error(e, CURRENT)
        return answer.exit_code, answer.stdout
    services = Services(environ)
    try:
        answer = (serve_ipam if plugin == "calico-ipam" else serve_plugin)(call, services)
    finally:
        services.close()
    return answer.exit_code, answer.stdout
