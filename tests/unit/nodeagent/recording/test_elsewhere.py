"""The recorder knows other nodes' workloads while that is wanted, as they come and go."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.flows.elsewhere import ELSEWHERE, EndsElsewhere
from cni_calico.flows.export.wanted import ExportedEnd
from cni_calico.flows.names import EndName
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.recording import names_all
from cni_calico.nodeagent.recording.elsewhere import ChangedLines, ElsewhereTeller, end_elsewhere
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
    teller = ElsewhereTeller(store, "n1", str(tmp_path), SILENT)
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


def test_the_file_is_made_anew_when_most_of_it_is_out_of_date(tmp_path: Path) -> None:
    path, notes = tmp_path / ELSEWHERE, list[str]()
    lines = ChangedLines(str(path), notes.append)
    record = endpoint("n2", "c", "10.0.2.1")
    for number in range(3000):
        lines.put(key_of(record), end_elsewhere(replace(record, ip_networks=(ip_network(number),))))
        lines.write(frozenset())
    assert path.read_bytes().count(b"\n") <= 1003 and not any(notes)
    ends = EndsElsewhere(str(tmp_path))
    ends.look()
    assert ends.get(ip_address(2999).packed) is not None and len(ends) == 1


def test_what_could_not_be_written_comes_later(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    notes = list[str]()
    lines = ChangedLines(f"{directory}/{ELSEWHERE}", notes.append)
    directory.write_text("no directory")
    record = endpoint("n2", "c", "10.0.2.1")
    lines.put(key_of(record), end_elsewhere(record))
    lines.write(frozenset())
    assert notes and "no names of other nodes' workloads: cannot write" in notes[-1]
    directory.unlink()
    directory.mkdir()
    lines.write(frozenset())
    assert notes[-1] == "" and (directory / ELSEWHERE).read_bytes().startswith(b'["shop/n2-k8s-c-eth0"')


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"FlowsNames": "All"}, False),
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
