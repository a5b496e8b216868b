"""host-local's notes on a real directory become allocations, over the embedded store, whatever fails on the way."""

import threading
from ipaddress import ip_address, ip_network

import pytest

from cni_calico import faults
from cni_calico.datastore.interface import Versioned, Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy, CalicoError, NotReady
from cni_calico.ipam.allocator import Allocator
from cni_calico.kernel.lock import file_lock
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import BlockList, ResourceKey
from cni_calico.model.kubernetes.pods import endpoint_key
from cni_calico.model.resources import ClusterInformation, IPPool, Node, WorkloadEndpoint
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.ipam.hostlocal import other_ipam, parse_reservation, parse_routes, plan_migration
from cni_calico.plugin.ipam.main import _upgrade
from cni_calico.plugin.ipam.upgrade import Upgrade
from tests.conftest import ROOT
from tests.deadlines import until
from tests.fakes.notes import Notes

NOW = "2026-11-20T12:06:00Z"
NODE = ResourceKey("Node", "n1")


class Pods:
    """Kubernetes, as far as the migration asks it."""

    def __init__(self):
        self.addresses, self.listed, self.api = {}, 0, None

    def list(self, listing, deadline, **options):
        self.listed += 1
        items = []
        for text, (namespace, name) in self.addresses.items():
            key = endpoint_key(namespace, name, "n1")
            metadata = new_metadata(key.name, namespace=namespace, uid="u", now=NOW)
            networks = tuple(ip_network(one) for one in text.split(","))
            endpoint = WorkloadEndpoint(metadata, "k8s", "n1", "eth0", "cali1", pod=name, ip_networks=networks)
            items.append(Versioned(key, encode(endpoint), 1))
        return type("Listing", (), {"items": items})


class Host:
    def __init__(self, path):
        self.root, self.log, self.pods = path, Notes(), Pods()
        self.config = DatastoreConfig("local", path=str(path / "datastore.db"))
        self.store = LocalStore(self.config.path)
        for name, cidr, size in (("four", "10.244.0.0/16", 26), ("six", "fd00:244::/112", 122)):
            self.put("IPPool", name, IPPool(new_metadata(name, uid="u", now=NOW), ip_network(cidr), size))
        self.node = Node(new_metadata("n1", uid="u", now=NOW), ipv4_ipip_tunnel=ip_address("10.244.1.1"))
        self.put("Node", "n1", self.node)
        self.directory = path / "var/lib/cni/networks/k8s-pod-network"
        self.plugin = path / "host/opt/cni/bin/calico"
        self.plugin.parent.mkdir(parents=True)
        self.plugin.write_text("#!/bin/sh\n")

    def put(self, kind, name, record):
        self.store.commit([Write.put(ResourceKey(kind, name), encode(record))], Deadline.after(10))

    def reserve(self, address, container, lines="\r\neth0"):
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / address).write_text(f"{container}{lines}")
        (self.directory / "last_reserved_ip.0").write_text(address)
        (self.directory / "lock").touch()

    def upgrade(self, *, kubernetes=True, **options):
        services = Services({"CALICO_RUN_DIR": str(self.root), "CALICO_STATE_DIR": str(self.root)})
        pods = self.pods if kubernetes else None
        made = Upgrade(
            services,
            services.datastore(self.config),
            "n1",
            "k8s-pod-network",
            str(self.root),
            pods,
            self.log,
            Deadline.after(20),
            wait_s=0,
        )
        for name, value in options.items():
            setattr(made, name, value)
        try:
            made.run()
        finally:
            services.close()
        return made

    def held(self):
        found = {}
        for item in self.store.list(BlockList(), Deadline.after(10)).items:
            for ordinal, index in enumerate(item.value["allocations"]):
                if index is not None:
                    attribute = item.value["attributes"][index]
                    found[str(item.key.cidr[ordinal])] = (attribute["handle_id"], attribute["secondary"])
        return found


@pytest.fixture
def migrated_host(tmp_path):
    made = Host(tmp_path)
    yield made
    made.store.close()


TUNNEL = {"10.244.1.1": ("ipip-tunnel-addr-n1", {"node": "n1", "type": "ipipTunnelAddress"})}


def test_every_pods_address_is_its_own_again(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    migrated_host.reserve("10.244.1.3", "c2", "\n")
    migrated_host.reserve("fd00:244::103", "c2", "")
    migrated_host.pods.addresses = {"10.244.1.2": ("default", "a"), "10.244.1.3,fd00:244::103": ("kube-system", "dns")}
    done = migrated_host.upgrade()
    held = migrated_host.held()
    assert {a: (h, s.get("pod"), s.get("namespace")) for a, (h, s) in held.items() if a not in TUNNEL} == {
        "10.244.1.2": ("k8s-pod-network.c1", "a", "default"),
        "10.244.1.3": ("k8s-pod-network.c2", "dns", "kube-system"),
        "fd00:244::103": ("k8s-pod-network.c2", "dns", "kube-system"),
    }
    assert held["10.244.1.1"] == TUNNEL["10.244.1.1"]
    assert (done.migrated, done.dropped, done.conflicts) == (3, 0, [])
    assert not migrated_host.directory.exists() and not migrated_host.plugin.exists()
    before = migrated_host.store.list(BlockList(), Deadline.after(10)).revision
    migrated_host.plugin.write_text("new")
    migrated_host.upgrade()
    assert (
        migrated_host.store.list(BlockList(), Deadline.after(10)).revision == before and migrated_host.plugin.exists()
    )


def test_what_nobody_has_is_dropped(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    migrated_host.reserve("10.244.1.3", "")
    done = migrated_host.upgrade()
    assert (done.migrated, done.dropped) == (0, 2) and set(migrated_host.held()) == {"10.244.1.1"}
    assert not migrated_host.directory.exists()


def test_a_pod_that_is_just_being_set_up_is_waited_for(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")

    def appear():
        until(lambda: migrated_host.pods.listed, "it asks")
        migrated_host.pods.addresses = {"10.244.1.2": ("default", "late")}

    thread = threading.Thread(target=appear)
    thread.start()
    migrated_host.upgrade(wait_s=15)
    thread.join()
    assert migrated_host.held()["10.244.1.2"][1]["pod"] == "late"


def test_without_kubernetes_every_container_counts(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    migrated_host.upgrade(kubernetes=False)
    assert migrated_host.held()["10.244.1.2"][0] == "k8s-pod-network.c1"
    assert set(migrated_host.held()["10.244.1.2"][1]) == {"node", "timestamp"}


def test_an_address_that_somebody_else_got(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    migrated_host.reserve("10.244.1.3", "c2")
    migrated_host.pods.addresses = {"10.244.1.2": ("default", "a"), "10.244.1.3": ("default", "b")}
    Allocator(migrated_host.store).assign_address(
        ip_address("10.244.1.2"), "net.x", {"node": "n2"}, "n2", Deadline.after(10)
    )
    done = migrated_host.upgrade()
    assert done.conflicts == ["10.244.1.2"] and migrated_host.held()["10.244.1.2"][0] == "net.x"
    assert migrated_host.held()["10.244.1.3"][0] == "k8s-pod-network.c2"
    assert any(
        "default/a and another owner both have the address 10.244.1.2" in text for text in migrated_host.log.texts
    )


def test_files_that_are_not_host_locals(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    (migrated_host.directory / "notes.txt").write_text("mine")
    (migrated_host.directory / "10.244.1.9").mkdir()
    migrated_host.pods.addresses = {"10.244.1.2": ("default", "a")}
    migrated_host.upgrade()
    assert (migrated_host.directory / "10.244.1.9").is_dir()
    assert (migrated_host.directory / "notes.txt").read_text() == "mine" and "10.244.1.2" in migrated_host.held()
    assert any("not host-local's" in text for text in migrated_host.log.texts)


def test_nothing_is_done_while_the_datastore_is_locked(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    locked = ClusterInformation(new_metadata("default", uid="u", now=NOW), datastore_ready=False)
    migrated_host.put("ClusterInformation", "default", locked)
    with pytest.raises(NotReady):
        migrated_host.upgrade()
    assert (
        migrated_host.plugin.exists() and (migrated_host.directory / "10.244.1.2").exists() and not migrated_host.held()
    )


def test_an_address_outside_of_every_pool_ends_it_and_nothing_is_lost(migrated_host):
    migrated_host.reserve("172.30.0.2", "c1")
    migrated_host.reserve("10.244.1.2", "c2")
    migrated_host.pods.addresses = {"172.30.0.2": ("default", "a"), "10.244.1.2": ("default", "b")}
    with pytest.raises(CalicoError, match="The provided IP address is not in a configured pool"):
        migrated_host.upgrade()
    assert (migrated_host.directory / "172.30.0.2").exists()
    migrated_host.put("IPPool", "more", IPPool(new_metadata("more", uid="u", now=NOW), ip_network("172.30.0.0/24"), 26))
    migrated_host.upgrade()
    assert {"172.30.0.2", "10.244.1.2"} <= set(migrated_host.held()) and not migrated_host.directory.exists()


def test_host_local_is_kept_waiting(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    with file_lock(str(migrated_host.directory / "lock"), Deadline.after(5)), pytest.raises(AttachmentBusy):
        migrated_host.upgrade(deadline=Deadline.after(0.2))
    assert (migrated_host.directory / "10.244.1.2").exists()


def test_an_empty_directory_goes_without_taking_the_plugin(migrated_host):
    migrated_host.reserve("10.244.1.2", "c1")
    (migrated_host.directory / "10.244.1.2").unlink()
    migrated_host.upgrade()
    assert not migrated_host.directory.exists() and migrated_host.plugin.exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_goes_on_after_a_fault_anywhere(migrated_host, when):
    """Every write and every file step fails once, each time at a later one, until nothing is left to fail."""
    pods = {}
    for number in range(2, 5):
        migrated_host.reserve(f"10.244.1.{number}", f"c{number}")
        pods[f"10.244.1.{number}"] = ("default", f"p{number}")
    migrated_host.pods.addresses = pods
    failed, nth = 0, 0
    while nth < 200:
        nth += 1
        faults.install(faults.FaultPlan(f"*:{when}:{nth}:fail"))
        try:
            migrated_host.upgrade()
            break
        except (CalicoError, OSError):
            failed += 1
        finally:
            faults.install(None)
    assert failed >= 3
    migrated_host.upgrade()
    assert not migrated_host.directory.exists()
    assert {a: h for a, (h, _) in migrated_host.held().items() if a not in TUNNEL} == {
        f"10.244.1.{n}": f"k8s-pod-network.c{n}" for n in range(2, 5)
    }


def test_routes_of_the_host():
    v4 = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n"
        "cali1234\t0201F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\n"
        "eth0\t0301F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\n"
        "cali9999\t0000F40A\t00000000\t0005\t0\t0\t0\t00FFFFFF\t0\n"
    )
    v6 = "fd000244000000000000000000000103 80 " + "0" * 32 + " 00 " + "0" * 32 + " 00000400 0 0 00000001 cali1234\n"
    assert parse_routes(v4, v6) == {ip_address("10.244.1.2"), ip_address("fd00:244::103")}
    assert parse_routes("", "") == frozenset()


def test_what_the_host_routes_to_a_workload_is_somebodys():
    reservation = parse_reservation("10.244.1.2", b"c1\r\neth0")
    plan = plan_migration(reservation, "net", "n1", {}, {ip_address("10.244.1.2")})
    assert plan.handle_id == "net.c1" and plan.attributes == {"node": "n1"}
    assert plan_migration(reservation, "net", "n1", {}, ()) is None
    assert parse_reservation("last_reserved_ip.0", b"10.0.0.1") is None


def test_configurations_that_stay_with_another_ipam():
    ours = (ROOT / "manifests" / "source" / "calico.yaml").read_text()
    assert other_ipam(ours) == "" and other_ipam("") == "" and other_ipam("{") == ""
    assert other_ipam(ours.replace('"calico-ipam"', '"host-local"')) == "host-local"
    assert other_ipam('{"ipam": {"subnet": "usePodCidr", "type":"host-local"}, "mtu": __CNI_MTU__}') == "host-local"
    nested = '{"type": "calico", "ipam": {"ranges": [[{"type": "x", "subnet": "usePodCidr"}]], "type": "host-local"}}'
    assert other_ipam(nested) == "host-local"
    assert other_ipam('{"type": "calico", "policy": {"type": "k8s"}}') == ""


def test_the_node_must_be_named(monkeypatch, capfd):
    monkeypatch.delenv("KUBERNETES_NODE_NAME", raising=False)
    assert _upgrade(b"") == 1
    assert "KUBERNETES_NODE_NAME not specified, refusing to migrate" in capfd.readouterr().err
