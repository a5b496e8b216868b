"""CHECK, STATUS, GC, DEL with a dead datastore, delegated IPAM and the log: through the same door as a runtime."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from cni_calico.log import Log
from tests.conftest import LAB_CACHE
from tests.e2e.host import EtcdNode, Node
from tests.e2e.oldest import grow_old

pytestmark = pytest.mark.netns

DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}


# -- CHECK ------------------------------------------------------------------------------------------------------------


def address_of(reply, position=0):
    return reply.document["ips"][position]["address"].split("/")[0]


def test_check_finds_nothing_after_add(node: Node, pod_ns):
    added = node.call("ADD", "c1", pod_ns.path, **DUAL)
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=added.document, **DUAL).ok


DAMAGE = {
    "pod route": lambda node, pod, added: pod.do("route", "del", "default"),
    "pod neighbour": lambda node, pod, added: pod.do("neigh", "del", "169.254.1.1", "dev", "eth0"),
    "pod address": lambda node, pod, added: pod.do("addr", "del", address_of(added, 1) + "/128", "dev", "eth0"),
    "pod link down": lambda node, pod, added: pod.do("link", "set", "eth0", "down"),
    "pod mtu": lambda node, pod, added: pod.do("link", "set", "eth0", "mtu", "1300"),
    "host route": lambda node, pod, added: node.host.do("route", "del", address_of(added)),
    "host mac": lambda node, pod, added: node.host.do("link", "set", "calic1", "address", "02:00:00:00:00:01"),
    "host sysctl": lambda node, pod, added: node.host.set_sysctl("ipv4/conf/calic1/proxy_arp", "0"),
    "host link": lambda node, pod, added: node.host.do("link", "del", "calic1"),
    "endpoint": lambda node, pod, added: node.put(dict.fromkeys(node.records(endpoints()))),
    "handle": lambda node, pod, added: node.put(dict.fromkeys(node.handles())),
}


def endpoints():
    from cni_calico.model.keys import ResourceList

    return ResourceList("WorkloadEndpoint")


@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_check_names_what_differs_and_repeating_add_repairs_it(node: Node, pod_ns, damage):
    added = node.call("ADD", "c1", pod_ns.path, **DUAL)
    DAMAGE[damage](node, pod_ns, added)
    checked = node.call("CHECK", "c1", pod_ns.path, prevResult=added.document, **DUAL)
    assert checked.rc == 1 and checked.document["code"] == 132
    differences = json.loads(checked.document["details"])
    assert differences and all(set(d) == {"where", "kind", "name", "wanted", "found"} for d in differences)
    assert damage.split()[0] in {d["where"] for d in differences} | {d["kind"] for d in differences} | {
        "handle" if d["kind"] == "allocation" else "" for d in differences
    }
    again = node.call("ADD", "c1", pod_ns.path, **DUAL)
    assert again.ok, again
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=again.document, **DUAL).ok
    assert node.call("DEL", "c1", pod_ns.path, **DUAL).ok
    if damage != "handle":  # its allocation is what 'calicoctl ipam check' finds
        assert not node.leftovers()


def test_check_changes_nothing(node: Node, pod_ns):
    added = node.call("ADD", "c1", pod_ns.path)
    pod_ns.do("route", "del", "default")
    before = node.dump()
    assert not node.call("CHECK", "c1", pod_ns.path, prevResult=added.document).ok
    assert node.dump() == before and not any(r["dst"] == "default" for r in pod_ns.routes())


def test_check_without_prev_result(node: Node, pod_ns):
    reply = node.call("CHECK", "c1", pod_ns.path)
    assert reply.document["code"] == 7 and "prevResult is missing" in reply.document["msg"]


# -- STATUS -----------------------------------------------------------------------------------------------------------


def test_status_of_a_good_node(node: Node):
    assert node.call("STATUS", "", "").ok


@pytest.mark.parametrize(
    ("prepare", "changes", "text"),
    [
        (None, {"nodename": None, "nodename_file": "/none/such"}, "check that the calico/node container is running"),
        ("not ready", {}, "Calico is currently not ready to process requests"),
        ("no pools", {}, "cannot find a qualified ippool"),
        ("other nodes", {}, "no configured Calico pools for node node1"),
    ],
)
def test_status_when_no_add_could_succeed(node: Node, prepare, changes, text):
    if prepare == "not ready":
        node.apply("ClusterInformation", "default", {"datastoreReady": False})
    elif prepare == "no pools":
        node.put({path: None for path in node.dump() if "/ippools/" in path})
    elif prepare == "other nodes":
        node.put({path: None for path in node.dump() if "/ippools/" in path})
        node.apply("Node", "node1", {})
        node.apply("IPPool", "p", {"cidr": "10.1.0.0/16", "blockSize": 26, "nodeSelector": "rack == 'x'"})
    reply = node.call("STATUS", "", "", **changes)
    assert reply.rc == 1 and reply.document["code"] == 50 and text in reply.document["msg"], reply


@pytest.mark.etcd
def test_status_while_etcd_is_away(on_etcd: EtcdNode):
    """Away from the beginning: not available. Away after a first success: running pods are fine, so is the node."""
    on_etcd.stop_etcd()
    before = on_etcd.call("STATUS", "", "")
    assert (
        before.document["code"] == 50 and "cannot reach the datastore since this node started" in before.document["msg"]
    )
    on_etcd.start_etcd()
    assert on_etcd.call("STATUS", "", "").ok
    on_etcd.stop_etcd()
    assert on_etcd.call("STATUS", "", "").ok


# -- GC ---------------------------------------------------------------------------------------------------------------


def valid(*pairs):
    return {"cni.dev/valid-attachments": [{"containerID": c, "ifname": i} for c, i in pairs]}


def test_gc_removes_what_is_not_valid_and_nothing_else(node: Node, make_pod_ns):
    pods = {name: make_pod_ns() for name in ("keep", "lost1", "lost2", "other")}
    for name in ("keep", "lost1", "lost2"):
        assert node.call("ADD", name, pods[name].path, **DUAL).ok
    assert node.call("ADD", "other", pods["other"].path, name="othernet").ok
    neighbour = Node(node.host, node.root, node.datastore, nodename="node2", environ=node.environ)
    assert neighbour.call("ADD", "faraway", make_pod_ns().path).ok
    assert node.call("ADD", "half", "", plugin="calico-ipam", **DUAL).rc == 1  # no namespace: an error, nothing taken
    assert node.call("ADD", "half", pods["keep"].path, plugin="calico-ipam", **DUAL).ok  # an ADD that died half way
    assert node.call("GC", "", "", **valid(("keep", "eth0")), **DUAL).ok
    assert set(node.taken().values()) == {"calnet.keep", "othernet.other", "calnet.faraway"}
    assert {e["spec"]["containerID"] for e in node.endpoints()} == {"keep", "other", "faraway"}
    assert pods["keep"].link("eth0") and pods["other"].link("eth0")
    assert not pods["lost1"].link("eth0") and not pods["lost2"].link("eth0")


def test_gc_without_a_list_is_refused(node: Node, pod_ns):
    node.call("ADD", "c1", pod_ns.path)
    reply = node.call("GC", "", "")
    assert reply.document["code"] == 7 and "cni.dev/valid-attachments is missing" in reply.document["msg"]
    assert pod_ns.link("eth0") is not None
    assert node.call("GC", "", "", **{"cni.dev/attachments": []}).ok  # the other spelling; nothing is valid
    assert not node.leftovers()


def test_gc_keeps_what_is_ambiguous(node: Node, pod_ns):
    """A handle of "a.b" could be network a's container b.x or network a.b's container x: no endpoint tells."""
    assert node.call("ADD", "x", pod_ns.path, plugin="calico-ipam", name="a.b").ok
    assert node.call("GC", "", "", name="a", **valid()).ok
    assert set(node.taken().values()) == {"a.b.x"}
    assert node.call("GC", "", "", name="a.b", **valid()).ok
    assert not node.taken()


OLD_ID = "c0ffee" + 58 * "0"


@pytest.mark.parametrize("ifname", ["eth0", "c"])
@pytest.mark.parametrize(
    ("handle", "args"),
    [
        (OLD_ID, ""),
        (f"calnet.{OLD_ID}", ""),
        ("shop.web-0", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"),
    ],
)
def test_ipam_del_of_an_allocation_without_attributes(node: Node, pod_ns, ifname, handle, args):
    """The only interface of a container without endpoints, whatever its name."""
    assert node.call("ADD", OLD_ID, pod_ns.path, plugin="calico-ipam", ifname=ifname, **DUAL).ok
    grow_old(node, OLD_ID, handle)
    assert set(node.taken().values()) == {handle}
    assert node.call("DEL", OLD_ID, "", plugin="calico-ipam", ifname=ifname, args=args, **DUAL).ok
    assert not node.taken() and not node.handles()


@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
def test_gc_of_allocations_without_attributes(node: Node, make_pod_ns, plugin):
    """Of this node's blocks, and of no container that has an endpoint or is valid."""
    names = {"alone": OLD_ID, "named": OLD_ID[::-1], "valid": "ab" * 32, "far": "cd" * 32, "used": "ef" * 32}
    for name, container in names.items():
        if name == "used":
            assert node.call("ADD", container, make_pod_ns().path, **DUAL).ok
        else:
            who = Node(node.host, node.root, node.datastore, nodename="node2" if name == "far" else "node1")
            who.environ, who.overrides = node.environ, node.overrides
            assert who.call("ADD", container, "/n", plugin="calico-ipam", ifname="c", **DUAL).ok
        grow_old(node, container, container if name == "alone" else f"calnet.{container}")
    assert node.call("GC", "", "", plugin=plugin, **valid((names["valid"], "c")), **DUAL).ok
    kept = {f"calnet.{names['valid']}", f"calnet.{names['far']}"}
    left = set(node.taken().values())
    assert left - {f"calnet.{names['used']}"} == kept
    assert (f"calnet.{names['used']}" in left) == (plugin == "calico-ipam")


# -- a dead datastore -------------------------------------------------------------------------------------------------


@pytest.mark.etcd
def test_del_while_etcd_is_dead_is_made_up_for(on_etcd: EtcdNode, pod_ns, make_pod_ns):
    node = on_etcd
    assert node.call("ADD", "c1", pod_ns.path, **DUAL).ok
    node.stop_etcd()
    assert node.call("DEL", "c1", pod_ns.path, **DUAL).ok
    assert pod_ns.link("eth0") is None and node.host.link("calic1") is None
    (intent,) = (node.root / "state" / "cni" / "pending-del").iterdir()
    assert intent.stat().st_mode & 0o777 == 0o600
    failed = node.call("ADD", "c2", pod_ns.path)
    assert failed.document["code"] == 101 and "127.0.0.1:2379" in failed.document["msg"]
    node.start_etcd()
    other = make_pod_ns()
    assert node.call("ADD", "c3", other.path).ok  # the next call that succeeds pays what is owed
    assert set(node.taken().values()) == {"calnet.c3"} and not node.intents()
    assert node.call("DEL", "c3", other.path).ok
    assert not node.leftovers()


@pytest.mark.etcd
def test_a_del_ends_in_time_when_three_endpoints_never_answer(on_etcd: EtcdNode, pod_ns, make_pod_ns, request):
    """Their packets are dropped, also those of connections that stood. Within 5 s, which is asked for only with --slow:
    a busy build server may stop anything for a second.
    """
    node, other = on_etcd, make_pod_ns()
    three = {**DUAL, "etcd_endpoints": ",".join(f"http://127.0.0.{n}:2379" for n in (1, 2, 3))}
    for container, ns in (("c1", pod_ns), ("c2", other)):
        assert node.call("ADD", container, ns.path, **three).ok
    drop = ("iptables", "-w", "-I", "INPUT", "-p", "tcp", "--dport", "2379", "-j", "DROP")
    node.host.run(*drop)
    begun = time.monotonic()
    assert node.call("DEL", "c1", pod_ns.path, **three).ok
    took = time.monotonic() - begun
    assert pod_ns.link("eth0") is None and node.host.link("calic1") is None
    assert len(node.intents()) == 1 and took < (5 if request.config.getoption("--slow") else 20)
    node.host.run(*(word.replace("-I", "-D") for word in drop))
    assert node.call("DEL", "c2", other.path, **three).ok
    assert not node.intents() and not node.leftovers()


@pytest.mark.etcd
def test_an_add_takes_back_the_intent(on_etcd: EtcdNode, pod_ns):
    node = on_etcd
    added = node.call("ADD", "c1", pod_ns.path)
    node.stop_etcd()
    assert node.call("DEL", "c1", pod_ns.path).ok and node.intents()
    node.start_etcd()
    again = node.call("ADD", "c1", pod_ns.path)
    assert again.ok and not node.intents()
    assert address_of(again) == address_of(added) and len(node.taken()) == 1
    assert node.call("DEL", "c1", pod_ns.path).ok
    assert not node.leftovers()


@pytest.mark.etcd
def test_an_unreadable_intent_is_left_and_reported(on_etcd: EtcdNode, pod_ns):
    directory = on_etcd.root / "state" / "cni" / "pending-del"
    directory.mkdir(parents=True)
    (directory / "bad.json").write_text("{")
    assert on_etcd.call("ADD", "c1", pod_ns.path).ok
    assert (directory / "bad.json").exists()
    assert "cannot read the owed release bad.json" in (on_etcd.root / "cni.log").read_text()


# -- other IPAM plugins -----------------------------------------------------------------------------------------------


@pytest.fixture
def delegating(node: Node, tmp_path: Path) -> Node:
    node.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
        "dataDir": str(tmp_path / "leases"),
    }
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    return node


@pytest.mark.cnitool
def test_host_local(delegating: Node, make_pod_ns):
    node, pods = delegating, [make_pod_ns(), make_pod_ns()]
    replies = [node.call("ADD", f"c{i}", pod.path) for i, pod in enumerate(pods)]
    assert all(reply.ok for reply in replies), replies
    assert [len(reply.document["ips"]) for reply in replies] == [2, 2]
    assert pods[0].run("ping", "-c1", "-W2", address_of(replies[1]), check=False).returncode == 0
    assert node.call("CHECK", "c0", pods[0].path, prevResult=replies[0].document).ok
    again = node.call("ADD", "c0", pods[0].path)
    assert [ip["address"] for ip in again.document["ips"]] == [ip["address"] for ip in replies[0].document["ips"]]
    for i, pod in enumerate(pods):
        assert node.call("DEL", f"c{i}", pod.path).ok
    assert not node.leftovers()
    leases = [path.name for path in (node.root / "leases" / "calnet").iterdir() if path.name[0].isdigit()]
    assert not leases


@pytest.mark.cnitool
def test_host_locals_routes_replace_the_default(delegating: Node, pod_ns):
    delegating.overrides["ipam"] = {
        **delegating.overrides["ipam"],
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "routes": [{"dst": "10.0.0.0/8"}],
    }
    assert delegating.call("ADD", "c1", pod_ns.path).ok
    assert {r["dst"] for r in pod_ns.routes()} == {"169.254.1.1", "10.0.0.0/8"}
    assert delegating.call("DEL", "c1", pod_ns.path).ok
    assert delegating.call("ADD", "c2", pod_ns.path, include_default_routes=True).ok
    assert {r["dst"] for r in pod_ns.routes()} == {"169.254.1.1", "10.0.0.0/8", "default"}
    assert delegating.call("DEL", "c2", pod_ns.path).ok
    assert not delegating.leftovers()


@pytest.mark.cnitool
def test_a_delegates_error_is_passed_on(delegating: Node, pod_ns):
    delegating.overrides["ipam"] = {**delegating.overrides["ipam"], "ranges": [[{"subnet": "nonsense"}]]}
    reply = delegating.call("ADD", "c1", pod_ns.path)
    assert reply.document["code"] == 131 and "host-local" in reply.document["msg"]
    assert not delegating.leftovers()


@pytest.mark.cnitool
def test_host_local_is_given_back_when_the_add_fails(delegating: Node, pod_ns):
    pod_ns.do("link", "add", "eth0", "type", "bridge")
    assert not delegating.call("ADD", "c1", pod_ns.path).ok
    leases = [path.name for path in (delegating.root / "leases" / "calnet").iterdir() if path.name[0].isdigit()]
    assert not leases and not delegating.leftovers()


# -- the log ----------------------------------------------------------------------------------------------------------


def write_lines(path: str, who: int, count: int) -> None:
    log = Log("info", path, stderr=False, max_count=1000)
    log.max_bytes = 20_000
    for i in range(count):
        log.info(f"line {who} {i}")


def test_no_line_is_lost_over_rotations(tmp_path: Path):
    path = tmp_path / "cni.log"
    workers = [multiprocessing.Process(target=write_lines, args=(str(path), who, 600)) for who in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    files = list(tmp_path.glob("cni*.log"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert len(files) > 5
    found = sorted(tuple(map(int, line.split("line ")[1].split())) for line in lines)
    assert found == [(who, i) for who in range(5) for i in range(600)]


def test_old_logs_go(tmp_path: Path):
    log = Log("info", str(tmp_path / "cni.log"), stderr=False, max_count=3)
    log.max_bytes = 500
    for i in range(200):
        log.info(f"line {i}")
    assert len(list(tmp_path.glob("cni-*.log"))) == 3


def test_logs_of_another_month_go(tmp_path: Path):
    """By age, while there are fewer than may be kept."""
    old, young, other = (
        tmp_path / f"{name}.log"
        for name in ("cni-2026-01-02T03-04-05.000006", "cni-2026-01-06T03-04-05.000006", "other")
    )
    for path, days in ((old, 9), (young, 5), (other, 99)):
        path.write_text("of another day\n")
        then = time.time() - days * 86400
        os.utime(path, (then, then))
    log = Log("info", str(tmp_path / "cni.log"), stderr=False, max_age_days=7)
    log.max_bytes = 100
    for i in range(5):
        log.info(f"line {i}, long enough for a file of its own or nearly")
    assert (old.exists(), young.exists(), other.exists()) == (False, True, True)


def test_secrets_are_not_logged(tmp_path: Path):
    log = Log("info", str(tmp_path / "cni.log"), stderr=False)
    log.info('{"k8s_auth_token": "abc123", "password":"hunter2"} Authorization: Bearer xyz eyJhbGciOi.eyJzdWIi.c2ln')
    text = (tmp_path / "cni.log").read_text()
    assert not any(secret in text for secret in ("abc123", "hunter2", "xyz", "eyJ"))
