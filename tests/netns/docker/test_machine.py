"""The driver beside a model of Docker: calls in any order, lost and repeated ones, crashes, reboots.

Rule: after every step the datastore, the kernel and the driver's files have what the model says. The driver's parts are
the real ones, in a network namespace of a child process; Docker's API is the model.
"""

from __future__ import annotations

import gc
import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.docker.addresses import AddressDriver
from cni_calico.docker.documents import RequestFields, host_name, peer_name
from cni_calico.docker.engine import DockerEngine
from cni_calico.docker.networks import NetworkDriver
from cni_calico.docker.run import DockerProcess
from cni_calico.log import SILENT
from cni_calico.model.keys import BlockList, HandleList, ResourceKey, ResourceList
from tests.netns.namespaces import namespace

pytestmark = [pytest.mark.netns]

NETWORK, SPACE = "a" * 64, "CalicoGlobalAddressSpace"
POOL = {"cidr": "10.65.0.0/24", "blockSize": 28, "nodeSelector": "all()"}
PORTS = "com.docker.network.portmap"
SLOTS = st.integers(0, 3)  # containers, each with an endpoint at most


class ModelEngine(DockerEngine):
    """Docker's API, as the driver asks it. ``endpoints``: container name by endpoint ID."""

    def __init__(self) -> None:
        super().__init__("", SILENT)
        self.endpoints: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        return True

    def ask(self, path: str, deadline: Deadline) -> Any:
        path = unquote(path)
        if path == "/info":
            return {"DockerRootDir": "/nowhere"}
        if path.startswith("/networks?"):
            return [{"Id": NETWORK, "Name": "web"}] if '"calico"' in path else []
        if path == f"/networks/{NETWORK}":
            return {"Name": "web", "Containers": {f"ep-{id}": {"Name": name} for id, name in self.endpoints.items()}}
        (name,) = json.loads(path.partition("filters=")[2])["name"]
        plain = name.strip("^/$")
        return [{"Id": plain.encode().hex().ljust(64, "0"), "Names": [f"/{plain}"], "Image": "box", "Labels": {}}]


class DockerMachine(RuleBasedStateMachine):
    """The model: ``held`` addresses, ``made`` endpoints with theirs, some ``linked``, ``recorded``, ``published``."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root / f"m{len(list(root.iterdir()))}"
        self.root.mkdir()
        self.engine, self.clock, self.boot, self.count = ModelEngine(), 1e9, 1, 0
        self.held: set[str] = set()
        self.made: dict[str, str] = {}
        self.linked: set[str] = set()
        self.recorded: set[str] = set()
        self.published: set[str] = set()
        self.slots: dict[int, tuple[str, str]] = {}  # endpoint and address
        self.environ = {
            "DATASTORE_TYPE": "local",
            "DATASTORE_PATH": str(self.root / "store.db"),
            "NODENAME": "n1",
            "CALICO_RUN_DIR": str(self.root / "run"),
            "CALICO_STATE_DIR": str(self.root / "state"),
            "CALICO_NODENAME_FILE": str(self.root / "state" / "nodename"),
            "CALICO_DOCKER_LOGLEVEL": "error",
        }
        self.store = open_datastore(parse_datastore(JsonFields({}), self.environ))
        document = {"kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "pool"}, "spec": POOL}
        ready = {**document, "kind": "ClusterInformation", "metadata": {"name": "default"}}
        ready["spec"] = {"datastoreReady": True}
        kinds = ((document, "IPPool", "pool"), (ready, "ClusterInformation", "default"))
        self.store.commit([Write.put(ResourceKey(kind, name), value) for value, kind, name in kinds], _soon())
        self._begin()
        self._network("CreateNetwork", Options={}, IPv4Data=[], IPv6Data=[])

    def _begin(self) -> None:
        process = DockerProcess(self.environ)
        process.host.engine, process.host.boot = self.engine, f"boot-{self.boot}"
        process.host.now = lambda: self.clock
        process.host.state.read()
        self.addresses, self.networks = AddressDriver(process.host), NetworkDriver(process.host)
        self.process = process
        process._cleanup.begin()

    def _end(self) -> None:
        """The process is gone, and with it its sockets."""
        del self.addresses, self.networks, self.process
        gc.collect()

    def _network(self, call: str, endpoint: str = "", **fields: Any) -> Any:
        ids = {"NetworkID": NETWORK, **({"EndpointID": endpoint} if endpoint else {})}
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in call).lstrip("_")
        return getattr(self.networks, name)(RequestFields(call, {**ids, **fields}))

    # -- what Docker does ---------------------------------------------------------------------------------------------

    @rule(slot=SLOTS)
    def start(self, slot: int) -> None:
        """As far as CreateEndpoint; Docker shows it then."""
        if slot in self.slots:
            return
        self.count += 1
        endpoint = f"{self.count:064x}"[::-1]
        asked = RequestFields("RequestAddress", {"PoolID": "CalicoPoolIPv4", "Address": "", "Options": None})
        address = self.addresses.request_address(asked)["Address"]
        bare = address.partition("/")[0]
        assert bare not in self.held
        self.held.add(bare)
        interface = {"Address": address, "AddressIPv6": "", "MacAddress": ""}
        self._network("CreateEndpoint", endpoint, Interface=interface, Options={})
        self.made[endpoint], self.slots[slot] = bare, (endpoint, bare)
        self.engine.endpoints[endpoint] = f"c{slot}"

    @rule(slot=SLOTS)
    def join(self, slot: int) -> None:
        """Also again, without Leave. Docker moves the peer."""
        endpoint, _ = self.slots.get(slot, ("", ""))
        if endpoint not in self.made:
            return
        self._network("Join", endpoint, SandboxKey=f"/nowhere/{slot}")
        subprocess.run(["ip", "link", "set", peer_name(endpoint), "netns", self._sandbox()], check=True)
        self.linked.add(endpoint)
        self.recorded.add(endpoint)

    def _sandbox(self) -> str:
        return (self.root.parent.parent / "sandbox").read_text()

    @rule(slot=SLOTS)
    def program(self, slot: int) -> None:
        endpoint, _ = self.slots.get(slot, ("", ""))
        if endpoint in self.linked:
            port = {"Proto": 6, "Port": 80, "HostPort": 0, "HostPortEnd": 0, "HostIP": ""}
            self._network("ProgramExternalConnectivity", endpoint, Options={PORTS: [port]})
            self.published.add(endpoint)

    @rule(slot=SLOTS)
    def revoke(self, slot: int) -> None:
        endpoint, _ = self.slots.get(slot, ("0" * 64, ""))
        assert self._network("RevokeExternalConnectivity", endpoint) == {}
        self.published.discard(endpoint)

    @rule(slot=SLOTS)
    def leave(self, slot: int) -> None:
        endpoint, _ = self.slots.get(slot, ("0" * 64, ""))
        assert self._network("Leave", endpoint) == {}
        self.published.discard(endpoint)
        self.linked.discard(endpoint)

    @rule(slot=SLOTS)
    def delete(self, slot: int) -> None:
        """Also without Leave, and again."""
        endpoint, _ = self.slots.get(slot, ("0" * 64, ""))
        assert self._network("DeleteEndpoint", endpoint) == {}
        self._forget(endpoint)

    @rule(slot=SLOTS, repeated=st.booleans())
    def release(self, slot: int, repeated: bool) -> None:
        """Also without anything before it, as a dockerd that was killed does."""
        endpoint, address = self.slots.pop(slot, ("", ""))
        for _ in range(1 + repeated):
            fields = {"PoolID": "CalicoPoolIPv4", "Address": address or "10.65.0.250"}
            assert self.addresses.release_address(RequestFields("ReleaseAddress", fields)) == {}
        self.held.discard(address)
        self._forget(endpoint)
        self.engine.endpoints.pop(endpoint, None)

    def _forget(self, endpoint: str) -> None:
        self.made.pop(endpoint, None)
        for one in (self.linked, self.recorded, self.published):
            one.discard(endpoint)

    @rule(slot=SLOTS)
    def lose(self, slot: int) -> None:
        """Docker has ended it, and every call about that got lost."""
        endpoint, _ = self.slots.pop(slot, ("", ""))
        self.engine.endpoints.pop(endpoint, None)

    # -- what happens to the driver -----------------------------------------------------------------------------------

    @rule()
    def crash(self) -> None:
        self._end()
        self._begin()

    @precondition(lambda self: self.slots)
    @rule()
    def reboot(self) -> None:
        self._end()
        for name in self._links():
            subprocess.run(["ip", "link", "delete", name], check=True)
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        self.boot += 1
        self.engine.endpoints.clear()
        self.slots.clear()
        for one in (self.held, self.made, self.linked, self.recorded, self.published):
            one.clear()
        self._begin()

    @rule()
    def ask_docker(self) -> None:
        """An hour later: what Docker does not have goes, with its address."""
        self.clock += 3600
        self.process._cleanup.docker_serves()
        self.process._cleanup._look()
        for endpoint, address in list(self.made.items()):
            if endpoint not in self.engine.endpoints or (endpoint in self.recorded and endpoint not in self.linked):
                self._forget(endpoint)
                self.held.discard(address)
        self.held &= set(self.made.values())
        for slot, (endpoint, _) in list(self.slots.items()):
            if endpoint not in self.made:
                del self.slots[slot]
                self.engine.endpoints.pop(endpoint, None)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _links(self) -> set[str]:
        shown = subprocess.run(["ip", "-j", "link", "show"], capture_output=True, text=True, check=True).stdout
        return {link["ifname"] for link in json.loads(shown) if link["ifname"].startswith("cali")}

    @invariant()
    def is_as_the_model_says(self) -> None:
        handles = self.store.list(HandleList(), _soon()).items
        assert len(handles) == len(self.held)
        assigned = sum(
            index is not None
            for item in self.store.list(BlockList(), _soon()).items
            for index in item.value["allocations"]
        )
        assert assigned == len(self.held)
        records = [item.value for item in self.store.list(ResourceList("WorkloadEndpoint"), _soon()).items]
        assert {record["spec"]["endpoint"] for record in records} == self.recorded
        with_ports = {record["spec"]["endpoint"] for record in records if record["spec"].get("ports")}
        assert with_ports == self.published & self.recorded
        assert self._links() == set(map(host_name, self.linked))
        state = self.process.host.state
        assert {each.id for each in state.endpoints.all()} == set(self.made)
        assert {each.address for each in state.addresses.all()} == self.held
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        assert ("calico-published" in tables) == bool(self.published)

    def teardown(self) -> None:
        """Docker has nothing: nothing is left."""
        for slot in list(self.slots):
            self.lose(slot)
        self.ask_docker()
        self.is_as_the_model_says()
        assert not (self.held or self.made or self._links())
        self._end()


def _soon() -> Deadline:
    return Deadline.after(60)


def run(root: Path, examples: int, steps: int) -> None:
    """In the child process."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: DockerMachine(root), settings=chosen)


@pytest.mark.parametrize(
    ("examples", "steps"), [(3, 12), pytest.param(60, 30, marks=[pytest.mark.slow, pytest.mark.takes(120)])]
)
def test_any_order_of_calls(tmp_path: Path, examples: int, steps: int) -> None:
    with namespace("docker-model") as host, namespace("docker-sandbox") as sandbox:
        (tmp_path / "sandbox").write_text(sandbox.name)
        (tmp_path / "machines").mkdir()
        host.set_sysctl("ipv4/ip_forward", "1")
        host.call(run, tmp_path / "machines", examples, steps, timeout_s=600)
