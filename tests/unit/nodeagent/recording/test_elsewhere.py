"""The recorder knows other nodes' workloads while that is wanted, as they come and go."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Versioned, Write
from cni_calico.flows.elsewhere import ELSEWHERE, EndsElsewhere, render_end
from cni_calico.flows.export.wanted import ExportedEnd
from cni_calico.flows.names import EndName
from cni_calico.flows.network_sets import NETWORK_SETS, NetworkSets
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.services import SERVICES, NamedServices
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.recording import names_all
from cni_calico.nodeagent.recording.elsewhere import (
    end_elsewhere,
    ends_elsewhere,
    names_everywhere,
    network_sets,
    service_text,
)
from cni_calico.nodeagent.recording.followed_lines import ChangedLines
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore


def endpoint(node: str, pod: str, address: str, **labels: str) -> WorkloadEndpoint:
    metadata = Metadata(f"{node}-k8s-{pod}-eth0", "shop", labels=labels, extra={"generateName": "web-7d9-"})
    networks = (ip_network(address),)
    return WorkloadEndpoint(metadata, "k8s", node, "eth0", f"cali{pod}", pod=pod, ip_networks=networks)


def key_of(record: WorkloadEndpoint) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", record.metadata.name, record.metadata.namespace)


def put(store: MemoryStore, record: WorkloadEndpoint) -> None:
    store.elsewhere(Write.put(key_of(record), encode(record)))


def test_they_come_and_go(tmp_path: Path) -> None:
    store, ends, path = MemoryStore(), EndsElsewhere(str(tmp_path)), tmp_path / ELSEWHERE
    path.write_text("left behind")
    teller = ends_elsewhere(store, "n1", str(tmp_path), SILENT)
    assert not path.exists()

    def named(address: str) -> EndName | None:
        ends.look()
        return ends.get(ip_address(address).packed)

    here, there = endpoint("n1", "a", "10.0.0.1"), endpoint("n10", "b", "10.0.1.1", app="web")
    put(store, here)
    put(store, there)
    teller.use(wanted=False)
    assert not path.exists()
    teller.use(wanted=True)
    until(lambda: named("10.0.1.1") == EndName("pod", "shop", "b"), "the other node's pod has a name")
    assert named("10.0.0.1") is None and path.stat().st_mode & 0o777 == 0o600
    assert ends.find(("shop", "b")) == ExportedEnd("web-7d9-*", {"app": "web"})
    later = endpoint("n2", "c", "10.0.2.1")
    put(store, later)
    until(lambda: named("10.0.2.1") is not None, "the next one has")
    put(store, replace(there, ip_networks=(ip_network("10.0.1.9"),)))
    until(lambda: named("10.0.1.9") is not None, "the other address has")
    assert named("10.0.1.1") is None
    store.elsewhere(Write("remove", key_of(later)))
    until(lambda: named("10.0.2.1") is None, "who is gone has none")
    teller.use(wanted=False)
    assert not path.exists() and named("10.0.1.9") is None


def lines_of(path: str, notes: list[str]) -> ChangedLines:
    return ChangedLines(path, "names", lambda key: render_end(str(key), None), notes.append)


def line(record: WorkloadEndpoint) -> bytes:
    return render_end("shop/n2-k8s-c-eth0", end_elsewhere(record))


def test_network_sets_come_and_go(tmp_path: Path) -> None:
    store, sets = MemoryStore(), NetworkSets(str(tmp_path))

    def put_set(namespace: str, name: str, nets: object) -> None:
        key = ResourceKey("NetworkSet" if namespace else "GlobalNetworkSet", name, namespace)
        store.elsewhere(Write.put(key, encode(Resource(key.kind, Metadata(name, namespace), {"nets": nets}))))

    def named(address: str) -> str | None:
        sets.look()
        found = sets.find(ip_address(address).packed, "shop")
        return None if found is None else f"{found.namespace}/{found.name}"

    put_set("", "world", ["0.0.0.0/0", "::/0"])
    put_set("shop", "partners", ["192.0.2.0/24", "2001:db8::7"])
    put_set("shop", "broken", ["192.0.2.0/99"])
    put_set("shop", "large", [f"10.{high}.{low}.0/24" for high in range(40) for low in range(256)])
    teller = network_sets(store, str(tmp_path), SILENT)
    teller.use(wanted=True)
    until(lambda: named("192.0.2.7") == "shop/partners", "the namespace's set has its name")
    until(lambda: named("203.0.113.1") == "/world", "the global set has")
    assert named("10.3.3.3") == "/world", "what is too large has none"
    assert named("2001:db8::7") == "shop/partners"
    put_set("shop", "partners", ["203.0.113.0/24"])
    until(lambda: named("203.0.113.1") == "shop/partners", "the change is known")
    assert named("192.0.2.7") == "/world"
    put_set("shop", "partners", "nonsense")
    put_set("", "later", ["192.0.2.0/24"])
    until(lambda: named("192.0.2.7") == "/later", "the next one is known")
    assert named("203.0.113.1") == "shop/partners", "what cannot be read keeps what it was"
    store.elsewhere(Write("remove", ResourceKey("NetworkSet", "partners", "shop")))
    until(lambda: named("203.0.113.1") == "/world", "who is gone has no name")
    teller.use(wanted=False)
    assert named("203.0.113.1") is None and not (tmp_path / NETWORK_SETS).exists()


def test_services_have_all_their_addresses(tmp_path: Path) -> None:
    """tests/e2e/kubernetes/agents/test_cluster_flows.py follows real ones."""
    path, known = tmp_path / SERVICES, NamedServices(str(tmp_path))

    def put_service(name: str, spec: object, status: object = None) -> bytes | None:
        document = {"metadata": {"name": name, "namespace": "shop"}, "spec": spec, "status": status}
        line = service_text(Versioned(ResourceKey("Service", name, "shop"), document, 1))
        with path.open("ab") as file:
            file.write(line or b"")
        return line

    def named(address: str, port: int, to_port: int = 8080, protocol: int = 6) -> str | None:
        known.look()
        pod, asked = ip_address("10.65.0.7").packed, ip_address(address).packed
        sent = pod, pod, asked, 1, to_port, port, protocol
        found = known.find(FlowRecord(1, 1, *sent, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2))
        return None if found is None else f"{found.name}:{found.port}"

    http = {"name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"}
    put_service("web", {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [http]})
    assert put_service("headless", {"clusterIP": "None", "clusterIPs": ["None"], "ports": [http]}) is None
    for wrong in (None, [], {"clusterIPs": 7, "ports": 7}, {"clusterIP": "x", "ports": ["x", {}]}):
        assert put_service("wrong", wrong, wrong) is None
    put_service("wrong", {"clusterIP": "10.96.0.9", "ports": ["x", {}, {"port": "80"}, {"port": 80, "protocol": "X"}]})
    assert named("10.96.0.1", 80) == "web:http" and named("10.96.0.9", 80) is None
    assert named("fd00::1", 80) == "web:http" and named("10.96.0.1", 81) is None
    assert named("10.96.0.1", 80, protocol=17) is None and len(known) == 2
    assert named("172.16.0.1", 30080) == "web:http" and named("172.16.0.1", 30080, to_port=9) is None
    dns = {"port": 53, "targetPort": "dns", "protocol": "UDP"}
    balanced = {"loadBalancer": {"ingress": [{"hostname": "x"}, {"ip": "192.0.2.9"}]}}
    put_service("dns", {"clusterIP": "10.96.0.2", "externalIPs": ["192.0.2.8"], "ports": [dns]}, balanced)
    assert named("192.0.2.9", 53, protocol=17) == "dns:"
    assert named("192.0.2.8", 53, protocol=17) == named("10.96.0.2", 53, 5353, 17) == "dns:"


def test_without_kubernetes_no_services_are_followed(tmp_path: Path) -> None:
    store = MemoryStore()
    assert len(names_everywhere(store, None, "n1", str(tmp_path), SILENT)) == 2
    assert len(names_everywhere(store, store, "n1", str(tmp_path), SILENT)) == 3


def test_the_file_is_made_anew_when_most_of_it_is_out_of_date(tmp_path: Path) -> None:
    path, notes = tmp_path / ELSEWHERE, list[str]()
    lines = lines_of(str(path), notes)
    record = endpoint("n2", "c", "10.0.2.1")
    for number in range(3000):
        lines.put(key_of(record), line(replace(record, ip_networks=(ip_network(number),))))
        lines.write(frozenset())
    assert path.read_bytes().count(b"\n") <= 1003 and not any(notes)
    ends = EndsElsewhere(str(tmp_path))
    ends.look()
    assert ends.get(ip_address(2999).packed) is not None and len(ends) == 1


def test_what_could_not_be_written_comes_later(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    notes = list[str]()
    lines = lines_of(f"{directory}/{ELSEWHERE}", notes)
    directory.write_text("no directory")
    record = endpoint("n2", "c", "10.0.2.1")
    lines.put(key_of(record), line(record))
    lines.write(frozenset())
    assert notes and "flows have no names: cannot write" in notes[-1]
    directory.unlink()
    directory.mkdir()
    lines.write(frozenset())
    assert notes[-1] == "" and (directory / ELSEWHERE).read_bytes().startswith(b'["shop/n2-k8s-c-eth0"')


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"FlowsNames": "All"}, True),
        ({"FlowsNames": "All", "Flows": "Disabled"}, False),
        ({"FlowsNames": "All", "Flows": "Enabled"}, True),
        ({"Flows": "Enabled"}, False),
        ({"FlowLogsGoldmaneServer": "goldmane:7443"}, True),
        ({"FlowLogsGoldmaneServer": "goldmane:7443", "FlowsNames": "Local"}, False),
        ({"FlowLogsGoldmaneServer": "goldmane:7443", "Flows": "Disabled"}, False),
        ({"FlowLogsLocalReporter": "Enabled"}, False),
    ],
)
def test_when_it_is_wanted(environ: dict[str, str], wanted: bool) -> None:
    parsed = parse_felix({f"FELIX_{name.upper()}": value for name, value in environ.items()})
    assert not parsed.warnings and names_all(parsed.settings) is wanted
