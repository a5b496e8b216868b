"""With the roles that ``calicoctl datastore etcd-roles`` prints, on a real etcd with authentication, every program
works, and none can write what it has no business to write.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.janitor.run import LEASE
from cni_calico.ctl.datastore.etcd_roles import AGENT, CALICOCTL, CONTROLLERS, JANITOR, PLUGIN
from cni_calico.datastore.election import Terms
from cni_calico.datastore.etcd.compaction import EtcdCompaction
from cni_calico.datastore.etcd.election import EtcdElection
from cni_calico.datastore.etcd.host_status import HostStatusKeys
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreForbidden
from cni_calico.model.keys import (
    CLUSTER,
    AffinityKey,
    BlockKey,
    HandleKey,
    HandleList,
    Key,
    ResourceKey,
    ResourceList,
    etcd_path,
)
from tests.contract import etcd_process
from tests.deadlines import soon, until
from tests.e2e.etcd.certificates import Authority
from tests.e2e.etcd.guarded import Guarded, GuardedRecords, printed
from tests.e2e.etcd.servers import opened, tls_arguments
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.programs import controllers
from tests.e2e.kubernetes.records import POLICY
from tests.e2e.kubernetes.roles import rights
from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT, Node, Pod
from tests.netns.startups import add_card

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(etcd_process.etcd_binary() is None, reason="no etcd: run tests/setup/build-go-tools.sh"),
]

HINT = "'calicoctl datastore etcd-roles' prints the rights that each program needs"
HEAD = {"apiVersion": "projectcalico.org/v3"}
BLOCK = ip_network("10.65.9.0/26")


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with etcd_process.single(arguments=tls_arguments(authority), scheme="https") as server:
        yield Guarded(server.urls[0], authority).protect(tmp_path_factory.mktemp("passwords"))


# -- who may not write what --------------------------------------------------------------------------------------------

CALICO: dict[str, Key] = {
    "policy": ResourceKey("GlobalNetworkPolicy", "deny-nothing"),
    "namespaced policy": ResourceKey("NetworkPolicy", "open", "shop"),
    "staged policy": ResourceKey("StagedGlobalNetworkPolicy", "later"),
    "set": ResourceKey("GlobalNetworkSet", "all"),
    "namespaced set": ResourceKey("NetworkSet", "all", "shop"),
    "tier": ResourceKey("Tier", "mine"),
    "default tier": ResourceKey("Tier", "default"),
    "pool": ResourceKey("IPPool", "mine"),
    "default pool": ResourceKey("IPPool", "default-ipv4-ippool"),
    "reservation": ResourceKey("IPReservation", "none"),
    "peer": ResourceKey("BGPPeer", "me"),
    "filter": ResourceKey("BGPFilter", "all"),
    "BGP of all": ResourceKey("BGPConfiguration", "default"),
    "BGP of a node": ResourceKey("BGPConfiguration", "node.n1"),
    "Felix of all": ResourceKey("FelixConfiguration", "default"),
    "Felix of a node": ResourceKey("FelixConfiguration", "node.n1"),
    "Felix of another name": ResourceKey("FelixConfiguration", "other"),
    "cluster": CLUSTER,
    "host endpoint": ResourceKey("HostEndpoint", "h"),
    "profile of a network": ResourceKey("Profile", "calnet"),
    "profile of a namespace": ResourceKey("Profile", "kns.shop"),
    "profile of an account": ResourceKey("Profile", "ksa.shop.web"),
    "controllers": ResourceKey("KubeControllersConfiguration", "default"),
    "node": ResourceKey("Node", "n1"),
    "node status": ResourceKey("CalicoNodeStatus", "n1"),
    "endpoint": ResourceKey("WorkloadEndpoint", "n1-cni-c1-eth0", "shop"),
    "block": BlockKey(BLOCK),
    "affinity": AffinityKey("n1", BLOCK),
    "virtual affinity": AffinityKey("load-balancer", BLOCK, "virtual"),
    "handle": HandleKey("calnet.c1"),
}
ADDRESSES = {"block", "affinity", "handle"}
# what each role may write; the rest is refused
MAY = {
    PLUGIN: {*ADDRESSES, "endpoint", "profile of a network", "profile of a namespace", "profile of an account"},
    AGENT: {
        *ADDRESSES,
        *("endpoint", "node", "node status", "cluster", "Felix of all", "Felix of a node", "BGP of all"),
        *("default tier", "default pool"),
    },
    CONTROLLERS: {
        *ADDRESSES,
        *("virtual affinity", "endpoint", "node", "namespaced policy", "profile of a namespace"),
        *("profile of an account", "controllers", "host endpoint", "peer", "Felix of a node", "BGP of a node"),
    },
    CALICOCTL: set(CALICO),
}


@pytest.mark.parametrize("role", sorted(MAY))
def test_what_each_role_may_write(undo: ExitStack, guarded: Guarded, role: str) -> None:
    store, may = opened(undo, guarded.config(role)), set()
    for name, key in CALICO.items():
        try:
            [written] = store.commit([Write.create(key, {})], soon()).stored
            store.commit([Write.delete(written)], soon())
            may.add(name)
        except DatastoreForbidden as e:
            assert etcd_path(key) in e.message and HINT in e.message
    assert may == MAY[role]


def test_a_plugin_of_kubernetes_writes_no_profiles(undo: ExitStack, guarded: Guarded) -> None:
    """Whoever has its certificate cannot open a namespace by its profile."""
    guarded.shell(printed("--kubernetes").replace(PLUGIN, "calico-cni-of-pods"))
    store = opened(undo, guarded.config("calico-cni-of-pods"))
    store.commit([Write.create(CALICO["endpoint"], {})], soon())
    store.commit([Write.remove(CALICO["endpoint"])], soon())
    for name in ("profile of a network", "profile of a namespace"):
        with pytest.raises(DatastoreForbidden):
            store.commit([Write.create(CALICO[name], {})], soon())


def test_who_may_use_leases_status_and_compaction(undo: ExitStack, guarded: Guarded) -> None:
    others: dict[str, Any] = {
        "lease": lambda store: EtcdElection(store, LEASE, "x", Terms()).campaign(soon()),
        "status": lambda store: HostStatusKeys(store, "n1").write(b"{}", 5, soon()),
        "compaction": lambda store: EtcdCompaction(store).step(soon()),
    }
    keys = {"lease": f"/calico/cni-calico/v1/{LEASE}", "status": "/calico/felix/v2/", "compaction": "compact_rev_key"}
    may: dict[str, set[str]] = {}
    for role in (PLUGIN, AGENT, CALICOCTL, CONTROLLERS):
        store, may[role] = opened(undo, guarded.config(role)), set()
        for name, use in others.items():
            try:
                use(store)
                may[role].add(name)
            except DatastoreForbidden as e:
                assert keys[name] in e.message and HINT in e.message
    assert may == {PLUGIN: set(), AGENT: {"status"}, CALICOCTL: set(), CONTROLLERS: {"lease", "compaction"}}


def test_everybody_may_compact(undo: ExitStack, guarded: Guarded) -> None:
    """As SECURITY.md says: etcd has no right for it."""
    store = opened(undo, guarded.config(PLUGIN))
    revision = store.list(HandleList(), soon()).revision
    store.cluster.read("Compact", pb.CompactionRequest(revision=revision), "compact etcd", soon())


def test_a_refusal_names_the_keys_and_the_command(undo: ExitStack, guarded: Guarded) -> None:
    store = opened(undo, guarded.config(PLUGIN))
    policies = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/"
    with pytest.raises(DatastoreForbidden) as refused:
        store.list(ResourceList("GlobalNetworkPolicy"), soon())
    assert f"list {policies}" in refused.value.message and HINT in refused.value.message
    with pytest.raises(DatastoreForbidden) as refused, store.watch(ResourceList("GlobalNetworkPolicy"), 1) as watch:
        watch.next(20)
    assert f"watch {policies}" in refused.value.message and HINT in refused.value.message
    writes = [Write.create(CALICO[name], {}) for name in ("handle", "policy", "pool")]
    with pytest.raises(DatastoreForbidden) as refused:
        store.commit(writes, soon())
    assert HINT in refused.value.message
    assert all(etcd_path(write.key) in refused.value.details for write in writes)
    assert store.get(CALICO["handle"], soon()) is None, "nothing of it is written"
    done = calicoctl(guarded, "get", "nodes", user=PLUGIN + "-unknown", check=False)
    assert "etcd-roles" in done or "user" in done


def calicoctl(guarded: Guarded, *words: str, stdin: Any = None, check: bool = True, user: str = CALICOCTL) -> str:
    """What it says."""
    argv = [*guarded.prefix, sys.executable, "-m", "cni_calico.ctl.main", *words]
    environ = {"PATH": os.environ["PATH"], **guarded.environ(user)}
    text = "" if stdin is None else json.dumps(stdin)
    done = subprocess.run(argv, input=text, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# -- what works --------------------------------------------------------------------------------------------------------


@pytest.mark.netns
@pytest.mark.bird
def test_a_node_and_calicoctl_work(authority: Authority, tmp_path: Path) -> None:
    with ExitStack() as undo:
        ns = undo.enter_context(namespace("roles"))
        add_card(ns, "eth0", "10.0.0.1/24")
        member = undo.enter_context(etcd_in(ns, tmp_path, scheme="https", arguments=tls_arguments(authority)))
        etcd = Guarded(member.client_url, authority, ("nsenter", f"--net={ns.path}")).protect(tmp_path)
        node = Node(ns, "n1", tmp_path / "n1", GuardedRecords(etcd))
        undo.callback(node.end)
        node.more = {"FELIX_REPORTINGINTERVALSECS": "1", "CALICO_NETWORKING_BACKEND": "bird"}
        node.run().until_ready()
        status = "/calico/felix/v2/no-region/host/n1/status"
        until(lambda: status in etcd.etcdctl("get", "--keys-only", "--prefix", status), "the host's status", 60)
        one, two = (Pod(undo.enter_context(namespace(name)), name) for name in ("c1", "c2"))
        use_network(etcd, node, node.add(one), node.add(two), tmp_path)
        assert node.stop()[0] == 0
        logs = [log.read_text() for log in (node.root / "log.txt", node.root / "cni.log") if log.exists()]
    # where controllers run, agents may not take the lease of who cleans up, and say so
    denied = [line for text in logs for line in text.splitlines() if "permission denied" in line]
    assert denied and all(f"take lease {LEASE}" in line for line in denied)


def use_network(etcd: Guarded, node: Node, one: Pod, two: Pod, directory: Path) -> None:
    def applied(kind: str, name: str, spec: Mapping[str, Any], **metadata: str) -> None:
        document = {**HEAD, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        calicoctl(etcd, "apply", "-f", "-", stdin=document)

    until(lambda: one.can_ping(two), "they reach each other", 30)
    applied("GlobalNetworkPolicy", "closed", {"selector": "all()", "types": ["Ingress"]})
    until(lambda: not one.can_ping(two), "the policy is in force", 60)
    calicoctl(etcd, "delete", "globalnetworkpolicy", "closed")
    until(lambda: one.can_ping(two), "and no longer", 60)
    applied("BGPPeer", "tor", {"peerIP": "10.0.0.9", "asNumber": 64513, "node": "n1"})
    applied("NetworkSet", "others", {"nets": ["10.9.0.0/24"]}, namespace="default")
    until(lambda: "10.0.0.9" in (node.root / "bird" / "bird.cfg").read_text(), "the BGP peer", 60)
    applied("CalicoNodeStatus", "n1", {"node": "n1", "classes": ["Agent"], "updatePeriodSeconds": 1})
    path = etcd_path(CALICO["node status"])
    until(lambda: "lastUpdated" in etcd.etcdctl("get", "--print-value-only", path), "the node's status", 60)
    assert "others" in calicoctl(etcd, "get", "networksets", "-n", "default")
    assert "c1" in calicoctl(etcd, "ipam", "show", f"--ip={one.addresses[0]}")
    calicoctl(etcd, "ipam", "check")
    calicoctl(etcd, "ipam", "configure", "--strict-affinity=true")
    calicoctl(etcd, "datastore", "migrate", "lock")
    calicoctl(etcd, "datastore", "migrate", "export", "-o", str(directory / "all.json"))
    calicoctl(etcd, "datastore", "migrate", "unlock")
    again = node.cni("ADD", one)
    node.cni("CHECK", one, prevResult=again)
    valid = [{"containerID": one.container, "ifname": "eth0"}]
    node.cni("GC", one, cniVersion="1.1.0", **{"cni.dev/valid-attachments": valid})
    assert two.addresses[0] not in calicoctl(etcd, "get", "workloadendpoints", "-A", "-o", "yaml")
    node.cni("DEL", one)
    calicoctl(etcd, "delete", "node", "n1")


@pytest.mark.slow
def test_a_janitor_works(undo: ExitStack, guarded: Guarded, tmp_path: Path) -> None:
    """By itself: an agent has this role besides its own where no controllers run."""
    guarded.shell(printed("--without-controllers"))
    guarded.etcdctl("user", "add", JANITOR, "--no-password")
    guarded.etcdctl("user", "grant-role", JANITOR, JANITOR)
    store = opened(undo, guarded.config(CALICOCTL))
    numbers = {"sequenceNumber": 1, "sequenceNumberForAllocation": {}, "deleted": False}
    empty = {"allocations": [None] * 64, "unallocated": list(range(64)), "attributes": [], **numbers}
    affinity, peer = AffinityKey("gone", BLOCK), ResourceKey("BGPPeer", "of-it")
    made = "2026-01-01T00:00:00Z"
    metadata = {"name": peer.name, "creationTimestamp": made}
    felix = ResourceKey("FelixConfiguration", "node.gone")
    store.commit(
        [
            Write.create(BlockKey(BLOCK), {"cidr": str(BLOCK), "affinity": "host:gone", **empty}),
            Write.create(affinity, {"state": "confirmed", "deleted": False}),
            Write.create(HandleKey("calnet.idle"), {"block": {}, "deleted": False}),
            Write.create(peer, {**HEAD, "kind": "BGPPeer", "metadata": metadata, "spec": {"node": "gone"}}),
            Write.create(felix, {**HEAD, "kind": felix.kind, "metadata": {**metadata, "name": felix.name}, "spec": {}}),
        ],
        soon(),
    )
    log = tmp_path / "log"
    own = {f"CALICO_{name}_DIR": str(tmp_path / name) for name in ("RUN", "STATE", "LOG")}
    argv = [sys.executable, "-m", "tests.e2e.janitor_driver", "n1"]
    environ = {**os.environ, **guarded.environ(JANITOR), **own, "NODENAME": "n1", "CALICO_DISABLE_FILE_LOGGING": "true"}
    with log.open("wb") as stream, subprocess.Popen(argv, env=environ, cwd=ROOT, stderr=stream) as process:
        undo.callback(process.kill)
        until(lambda: store.get(affinity, soon()) is None, "the departed node's block is released", 60)
        until(lambda: store.list(HandleList(), soon()).items == [], "the idle handle goes", 60)
        process.terminate()
        process.wait(20)
    assert "permission denied" not in log.read_text(), log.read_text()


@pytest.mark.slow
@pytest.mark.kubernetes
def test_the_controllers_work(kube: Cluster, guarded: Guarded, undo: ExitStack, tmp_path: Path) -> None:
    """All of them, also addresses for Services and host endpoints; the lease, and the cleaning up."""
    store = opened(undo, guarded.config(CALICOCTL))
    kube.create_node("n1", metadata={"labels": {"zone": "a"}})
    kube.create_pod("space", "web-0", "n1", labels={"app": "web"})
    address = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}
    kube.request(
        "PATCH",
        "/api/v1/namespaces/space/pods/web-0/status",
        {"status": address},
        content_type="application/merge-patch+json",
    )
    node, endpoint = ResourceKey("Node", "n1"), ResourceKey("WorkloadEndpoint", "n1-k8s-web--0-eth0", "space")
    refs = {"orchRefs": [{"orchestrator": "k8s", "nodeName": "n1"}], "bgp": {"ipv4Address": "10.0.0.1/24"}}
    spec = {"interfaceName": "cali1", "node": "n1", "orchestrator": "k8s", "pod": "web-0", "endpoint": "eth0"}
    pool = {"cidr": "10.7.0.0/24", "allowedUses": ["LoadBalancer"], "nodeSelector": "all()", "blockSize": 30}
    hosts = {"controllers": {"node": {"hostEndpoint": {"autoCreate": "Enabled"}}, "loadBalancer": {}, "policy": {}}}
    documents: dict[ResourceKey, Mapping[str, Any]] = {
        node: refs,
        endpoint: spec,
        ResourceKey("IPPool", "services"): pool,
        CALICO["controllers"]: hosts,
    }
    for key, content in documents.items():
        place = {"namespace": key.namespace} if key.namespace else {}
        document = {**HEAD, "kind": key.kind, "metadata": {"name": key.name, **place}, "spec": content}
        store.commit([Write.put(key, document)], soon())
    kube.kubectl("apply", "-n", "space", "-f", "-", stdin=json.dumps(POLICY))
    service = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    services = "/api/v1/namespaces/space/services"
    kube.request("POST", services, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": service})
    undo.callback(kube.kubectl, "delete", "-n", "space", "networkpolicy", "web")
    enabled = "policy,profile,serviceaccount,workloadendpoint,node,loadbalancer"
    environ = {**guarded.environ(CONTROLLERS), "ENABLED_CONTROLLERS": enabled, "COMPACTION_PERIOD": "1s"}

    def exists(*keys: ResourceKey) -> bool:
        return all(store.get(key, soon()) is not None for key in keys)

    def labels(key: ResourceKey) -> Any:
        found = store.get(key, soon())
        return None if found is None else found.value["metadata"].get("labels")

    with rights(kube, "calico-etcd.yaml"), controllers(kube, tmp_path, **environ) as process:
        until(lambda: exists(ResourceKey("Profile", "kns.space")), "a namespace's profile", 60)
        until(lambda: exists(ResourceKey("NetworkPolicy", "knp.default.web", "space")), "a policy", 60)
        until(lambda: exists(ResourceKey("HostEndpoint", "n1-auto-hep")), "a host endpoint", 60)
        until(lambda: (labels(endpoint) or {}).get("app") == "web", "a pod's labels", 60)
        until(lambda: (labels(node) or {}).get("zone") == "a", "a node's labels", 60)
        until(
            lambda: kube.request("GET", f"{services}/s")["status"].get("loadBalancer", {}).get("ingress"),
            "a Service's address",
            60,
        )
        until(lambda: "compact_rev_key" in guarded.etcdctl("get", "--keys-only", "compact_rev_key"), "compaction", 60)
        kube.kubectl("delete", "-n", "space", "service", "s")
        until(lambda: not store.list(HandleList(), soon()).items, "its address is released", 60)
        assert process.end() == 0
        log = process.log.read_text()
    assert "permission denied" not in log and "Traceback" not in log, log
