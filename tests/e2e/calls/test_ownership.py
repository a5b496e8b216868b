"""An interface is removed only by whom it belongs to: a repeated DEL of an old sandbox, a GC, a reused namespace path
take nothing from a living pod, whatever has become of its record.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cni_calico.model.keys import ResourceList
from cni_calico.model.names import kubernetes_veth
from tests.e2e.host import EtcdNode, Node, added, addresses
from tests.e2e.served import ForkedServer
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = pytest.mark.netns

S1, S2, S3 = "51" * 32, "52" * 32, "53" * 32
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=space;K8S_POD_NAME=web-0"
SIGNED, OLD = "cni-calico/2:", "cni-calico:"
WEB = "/k8s/space/web-0"
# two names of pods with the same first 44 bits of SHA-1, and so the same interface; found in 18 s
TWINS, TWIN = ({"shop": "web-3430785"}, {"tenant": "job-2308550"}), "calia75d02016cd"


def two_sandboxes(node: Node, make_pod_ns: MakeNamespace) -> tuple[Any, Namespace]:
    """A pod whose first sandbox is gone and whose second lives: the first one's result, the second one's namespace."""
    old, living = make_pod_ns(), make_pod_ns()
    first = added(node, S1, old, args=POD).document
    assert node.call("DEL", S1, old.path, args=POD).ok
    added(node, S2, living, args=POD)
    return first, living


def host_end(node: Node) -> str:
    (link,) = [link for link in node.host.ip("link", "show") if link["ifname"].startswith("cali")]
    (form,) = [prefix for prefix in (SIGNED, OLD) if link["ifalias"].startswith(prefix)]
    digest, _, workload = link["ifalias"].removeprefix(form).partition("/")
    assert len(digest) == 40 and workload.count("/") == (2 if form == SIGNED else 0)
    return str(link["ifname"])


def require_alive(node: Node, pod: Namespace) -> None:
    assert pod.link("eth0") is not None and "UP" in pod.link("eth0")["flags"]
    address = next(iter(pod.addresses("eth0"))).partition("/")[0]
    assert [route["dev"] for route in node.host.routes(4) if route["dst"] == address] == [host_end(node)]


def endpoint_path(node: Node) -> str:
    (path,) = node.records(ResourceList("WorkloadEndpoint"))
    return path


REPEATED = {"without a namespace": {}, "with prevResult": {"prevResult": True}}


@pytest.mark.parametrize("how", REPEATED)
@pytest.mark.parametrize("record", ["there", "deleted", "unreadable"])
def test_a_repeated_del_of_an_old_sandbox(any_node: Node, make_pod_ns: MakeNamespace, how: str, record: str) -> None:
    first, living = two_sandboxes(any_node, make_pod_ns)
    if record == "deleted":
        any_node.put({endpoint_path(any_node): None})
    elif record == "unreadable":
        any_node.spoil(endpoint_path(any_node), b"no document")
    changes = {"prevResult": first} if REPEATED[how] else {}
    any_node.call("DEL", S1, args=POD, **changes)
    require_alive(any_node, living)


@pytest.mark.etcd
@pytest.mark.parametrize("how", REPEATED)
def test_a_repeated_del_without_the_datastore(on_etcd: EtcdNode, make_pod_ns: MakeNamespace, how: str) -> None:
    first, living = two_sandboxes(on_etcd, make_pod_ns)
    on_etcd.stop_etcd()
    assert on_etcd.call("DEL", S1, args=POD, **({"prevResult": first} if REPEATED[how] else {})).ok
    require_alive(on_etcd, living)
    assert len(on_etcd.intents()) == 1
    assert on_etcd.call("DEL", S2, living.path, args=POD).ok
    assert living.link("eth0") is None and on_etcd.host.link("cali") is None
    on_etcd.start_etcd()


@pytest.mark.parametrize("record", ["there", "deleted", "unreadable"])
def test_gc_leaves_the_new_sandbox(any_node: Node, make_pod_ns: MakeNamespace, record: str) -> None:
    _, living = two_sandboxes(any_node, make_pod_ns)
    # what an ADD of the first sandbox that died would have left
    handle = added(any_node, S1, make_pod_ns(), plugin="calico-ipam", args=POD)
    if record == "deleted":
        any_node.put({endpoint_path(any_node): None})
    elif record == "unreadable":
        any_node.spoil(endpoint_path(any_node), b"no document")
    valid = [{"containerID": S2, "ifname": "eth0"}]
    reply = any_node.call("GC", "", "", **{"cni.dev/valid-attachments": valid})
    assert reply.ok or record == "unreadable", reply
    require_alive(any_node, living)
    own = next(iter(living.addresses("eth0"))).partition("/")[0]
    assert own in any_node.taken()
    assert record == "unreadable" or addresses(handle)[0].partition("/")[0] not in any_node.taken()


@pytest.mark.parametrize("record", ["none", "there"])
@pytest.mark.parametrize("whose", ["a living pod", "an unsigned living pod", "another plugin", "a third namespace"])
def test_a_container_in_the_namespace_of_another(
    any_node: Node, make_pod_ns: MakeNamespace, whose: str, record: str
) -> None:
    """The path of a namespace means another one when its process's number was given out again."""
    other, args = make_pod_ns(), POD.replace("web-0", "other")
    if record == "there":
        added(any_node, S3, make_pod_ns(), args=args)
        any_node.host.do("link", "delete", host_end(any_node))  # it went with its namespace
    held = any_node.taken()
    if whose.endswith("living pod"):
        added(any_node, S2, other, args=POD)
        if "unsigned" in whose:
            any_node.host.do("link", "set", host_end(any_node), "alias", "")
    else:
        place = any_node.host if whose == "another plugin" else make_pod_ns()
        place.do("link", "add", "vethforeign", "type", "veth", "peer", "name", "eth0", "netns", other.name)
        other.do("link", "set", "eth0", "up")
        if record == "none":  # also before it is in use
            assert any_node.call("DEL", S3, other.path, args=args).ok and other.link("eth0") is not None
        place.do("link", "set", "vethforeign", "up")
    assert any_node.call("DEL", S3, other.path, args=args).ok
    assert any_node.call("DEL", S3, other.path, args=args).ok
    assert other.link("eth0") is not None
    assert not held.keys() & any_node.taken().keys()
    if whose == "a living pod":
        require_alive(any_node, other)


def test_an_interface_that_was_renamed(any_node: Node, make_pod_ns: MakeNamespace) -> None:
    pod = make_pod_ns()
    added(any_node, S1, pod, args=POD)
    name = host_end(any_node)
    any_node.put({endpoint_path(any_node): None})
    any_node.host.do("link", "set", name, "down")
    any_node.host.do("link", "set", name, "name", "renamed")
    any_node.host.do("link", "set", "renamed", "up")
    assert any_node.call("DEL", S2, pod.path, args=POD).ok
    assert pod.link("eth0") is not None
    assert any_node.call("DEL", S1, pod.path, args=POD).ok
    assert pod.link("eth0") is None and not any_node.leftovers()


@pytest.mark.parametrize("how", ["the pod's end moved", "the pod's end renamed", "the host's end moved and back"])
def test_an_interface_that_was_moved(any_node: Node, make_pod_ns: MakeNamespace, how: str) -> None:
    """Its alias stays with it, whoever has moved it where; no record helps."""
    pod, other = make_pod_ns(), make_pod_ns()
    added(any_node, S1, pod, args=POD)
    name, path = host_end(any_node), ""
    any_node.put({endpoint_path(any_node): None})
    if how == "the pod's end moved":
        pod.do("link", "set", "eth0", "netns", other.name, "name", "moved0")
    elif how == "the pod's end renamed":
        pod.do("link", "set", "eth0", "down")
        pod.do("link", "set", "eth0", "name", "other0")
    else:
        any_node.host.do("link", "set", name, "netns", other.name)
        here = any_node.host.name
        other.do("link", "set", name, "netns", here, "name", "moved0")
        any_node.host.do("link", "set", "moved0", "up")
        path = pod.path
    names = ("eth0", "moved0", "other0")
    assert any_node.call("DEL", S2, path, args=POD).ok
    assert any(space.link(each) for space in (pod, other) for each in names)
    assert any_node.call("DEL", S1, path, args=POD).ok
    assert not any(space.link(each) for space in (pod, other, any_node.host) for each in names)
    assert not any_node.leftovers()


def test_an_add_that_died_before_it_could_sign(plain_node: Node, pod_ns: Namespace) -> None:
    """The kernel ignores an alias in the message that makes an interface."""
    with pytest.raises(Killed):
        plain_node.call("ADD", S1, pod_ns.path, args=POD, fault="netlink.link-set:before:1:kill")
    (link,) = [link for link in plain_node.host.ip("link", "show") if link["ifname"].startswith("cali")]
    assert "ifalias" not in link
    assert plain_node.call("DEL", S1, args=POD).ok
    assert not plain_node.leftovers()


def test_no_interface_is_up_before_it_is_signed(plain_node: Node, pod_ns: Namespace) -> None:
    """Whichever step of its ADD is the last one."""
    up, steps = 0, 0
    for steps in range(1, 100):
        try:
            plain_node.call("ADD", S1, pod_ns.path, args=POD, fault=f"*:after:{steps}:kill")
            break
        except Killed:
            for link in plain_node.host.ip("link", "show"):
                if link["ifname"].startswith("cali") and "UP" in link["flags"]:
                    up += 1
                    assert link.get("ifalias", "").startswith(SIGNED), steps
        assert plain_node.call("DEL", S1, pod_ns.path, args=POD).ok
        assert not plain_node.leftovers()
    assert up > 2 and steps > 10
    assert plain_node.call("DEL", S1, pod_ns.path, args=POD).ok


@pytest.mark.etcd
def test_unsigned_interfaces_of_older_versions(on_etcd: EtcdNode, make_pod_ns: MakeNamespace) -> None:
    """Without records and without a proof only the namespace that the call names is touched."""
    node, pod = on_etcd, make_pod_ns()
    added(node, S1, pod, args=POD)
    name = host_end(node)
    node.host.do("link", "set", name, "alias", "")
    node.stop_etcd()
    assert node.call("DEL", S1, args=POD).ok
    assert pod.link("eth0") is not None and len(node.intents()) == 1
    assert node.call("DEL", S1, pod.path, args=POD).ok
    assert pod.link("eth0") is None and node.host.link(name) is None
    node.start_etcd()


def test_a_repeated_add_signs(any_node: Node, pod_ns: Namespace) -> None:
    added(any_node, S1, pod_ns, args=POD)
    name = host_end(any_node)
    signed = any_node.host.link(name)
    assert signed["ifalias"].endswith(WEB)
    any_node.host.do("link", "set", name, "alias", "")
    added(any_node, S1, pod_ns, args=POD)
    assert any_node.host.link(name) == signed


def test_a_name_that_a_living_container_has(plain_node: Node, make_pod_ns: MakeNamespace) -> None:
    """Outside Kubernetes 11 characters of the ID name the interface; the record that would tell them apart is lost."""
    node = plain_node
    living, other = make_pod_ns(), make_pod_ns()
    added(node, "cnitool-abc111", living)
    node.put({endpoint_path(node): None})
    refused = node.call("ADD", "cnitool-abc222", other.path)
    assert not refused.ok and refused.document["code"] == 127, refused
    assert all(f"default/cnitool-abc{end}" in refused.document["msg"] for end in ("111", "222"))
    require_alive(node, living)


@pytest.mark.parametrize("form", [OLD + "{}", SIGNED + "{}" + WEB])
def test_what_the_agent_has_signed(any_node: Node, make_pod_ns: MakeNamespace, form: str) -> None:
    """It does not know the network; the container's DEL recognises it, another's does not. Older versions did not write
    the pod's name.
    """
    pod = make_pod_ns()
    added(any_node, S1, pod, args=POD)
    name = host_end(any_node)
    digest = hashlib.sha1(f"/{S1}/eth0".encode()).hexdigest()
    any_node.host.do("link", "set", name, "alias", form.format(digest))
    any_node.put({endpoint_path(any_node): None})
    assert any_node.call("DEL", S2, args=POD).ok
    require_alive(any_node, pod)
    assert any_node.call("DEL", S1, args=POD).ok
    assert pod.link("eth0") is None and not any_node.leftovers()


@pytest.mark.parametrize("profiles", [["calnet"], ["kns.space"]])
def test_a_network_that_was_renamed(any_node: Node, pod_ns: Namespace, profiles: list[str]) -> None:
    """The alias and the handle have its old name; with policies of Kubernetes only the handle tells it."""
    added(any_node, S1, pod_ns, args=POD)
    ((path, endpoint),) = any_node.records(ResourceList("WorkloadEndpoint")).items()
    any_node.put({path: {**endpoint, "spec": {**endpoint["spec"], "profiles": profiles}}})
    living = host_end(any_node)
    assert any_node.call("DEL", S2, args=POD, name="renamed").ok and host_end(any_node) == living
    assert any_node.call("DEL", S1, pod_ns.path, args=POD, name="renamed").ok
    assert pod_ns.link("eth0") is None and not any_node.leftovers()


@pytest.mark.parametrize("form", [OLD + "{}", f"{SIGNED}{{}}/cni/default/{S1}"])
def test_what_the_agent_has_signed_is_replaced(any_node: Node, make_pod_ns: MakeNamespace, form: str) -> None:
    """Outside Kubernetes, when the container has got another namespace."""
    added(any_node, S1, make_pod_ns())
    name = host_end(any_node)
    digest = hashlib.sha1(f"/{S1}/eth0".encode()).hexdigest()
    any_node.host.do("link", "set", name, "alias", form.format(digest))
    again = make_pod_ns()
    added(any_node, S1, again)
    require_alive(any_node, again)
    assert any_node.call("DEL", S1).ok and not any_node.leftovers()


# -- two pods of one interface name -----------------------------------------------------------------------------------


def twin(which: int) -> tuple[str, str]:
    """A pod's "namespace/name", and its CNI_ARGS."""
    ((space, name),) = TWINS[which].items()
    return f"{space}/{name}", f"IgnoreUnknown=1;K8S_POD_NAMESPACE={space};K8S_POD_NAME={name}"


def test_the_twins_have_one_name() -> None:
    assert {kubernetes_veth(*name.split("/")) for name, _ in map(twin, (0, 1))} == {TWIN}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("alias", ["ours", "an older version's", "none"])
def test_a_second_pod_with_the_interface_of_a_first(
    any_node: Node, make_pod_ns: MakeNamespace, first: int, alias: str
) -> None:
    """Its ADD fails and names both, and takes nothing; its DELs leave the first one's interface."""
    living, other = make_pod_ns(), make_pod_ns()
    (owner, own_args), (second, args) = twin(first), twin(1 - first)
    added(any_node, S1, living, args=own_args)
    digest = hashlib.sha1(f"/{S1}/eth0".encode()).hexdigest()
    given = {"ours": any_node.host.link(TWIN)["ifalias"], "none": ""}.get(alias, OLD + digest)
    any_node.host.do("link", "set", TWIN, "alias", given)
    held = any_node.taken().keys()
    refused = any_node.call("ADD", S2, other.path, args=args)
    assert not refused.ok and refused.document["code"] == 127, refused
    assert owner in refused.document["msg"] and second in refused.document["msg"]
    assert any_node.taken().keys() == held and len(any_node.records(ResourceList("WorkloadEndpoint"))) == 1
    for _ in range(2):
        assert any_node.call("DEL", S2, other.path, args=args).ok
    assert living.link("eth0") is not None and any_node.host.link(TWIN)["ifalias"] == given if given else True
    assert any_node.call("DEL", S1, living.path, args=own_args).ok and any_node.host.link(TWIN) is None
    added(any_node, S2, other, args=args)
    assert any_node.call("DEL", S2, other.path, args=args).ok and not any_node.leftovers()


def test_a_pod_that_claims_the_interface_of_another(any_node: Node, make_pod_ns: MakeNamespace) -> None:
    """As the author of a pod can with the annotation of its container's ID: an interface without alias, of a pod of
    upstream's, stays, because IPAM holds its addresses for another container; the owner's own DEL removes it.
    """
    living, other = make_pod_ns(), make_pod_ns()
    (owner, own_args), (thief, args) = twin(0), twin(1)
    added(any_node, S1, living, args=own_args)
    any_node.host.do("link", "set", TWIN, "alias", "")
    ((path, document),) = any_node.records(ResourceList("WorkloadEndpoint")).items()
    renamed = json.dumps([path, document]).replace(S1, S2)
    for mine, its in zip(owner.split("/"), thief.split("/"), strict=True):
        renamed = renamed.replace(mine, its).replace(mine.replace("-", "--"), its.replace("-", "--"))
    any_node.put(dict([json.loads(renamed)]))
    assert len(any_node.records(ResourceList("WorkloadEndpoint"))) == 2
    for _ in range(2):
        assert any_node.call("DEL", S2, other.path, args=args).ok
    assert living.link("eth0") is not None and any_node.host.link(TWIN) is not None
    assert len(any_node.records(ResourceList("WorkloadEndpoint"))) == 1
    assert any_node.call("DEL", S1, living.path, args=own_args).ok
    assert any_node.host.link(TWIN) is None and not any_node.leftovers()


def test_twins_at_once(any_node: Node, make_pod_ns: MakeNamespace) -> None:
    """One gets the interface, the other is told."""
    any_node.forks = None  # they would be one after the other
    spaces = make_pod_ns(), make_pod_ns()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(any_node.call, "ADD", (S1, S2)[i], spaces[i].path, args=twin(i)[1]) for i in (0, 1)]
        replies = [call.result() for call in calls]
    assert sorted(reply.ok for reply in replies) == [False, True], replies
    winner = 0 if replies[0].ok else 1
    assert replies[1 - winner].document["code"] == 127
    assert any_node.host.link(TWIN)["ifalias"].endswith(twin(winner)[0])
    for i in (1 - winner, winner):
        assert spaces[winner].link("eth0") is not None
        assert any_node.call("DEL", (S1, S2)[i], spaces[i].path, args=twin(i)[1]).ok
    assert not any_node.leftovers()


def order_of(node: Node, server: ForkedServer, container: str, pod: Namespace) -> list[str]:
    """What the server does to the interface and to the records in a DEL."""
    trace = node.root / "trace"
    trace.unlink(missing_ok=True)
    server.arm("", str(trace))
    assert node.call("DEL", container, pod.path).ok
    server.arm("")
    return [line for line in trace.read_text().split() if line.startswith(("netlink.link-delete", "local.commit"))]


def test_an_unsigned_interface_goes_before_the_record_that_says_whose_it_is(
    plain_node: Node, make_pod_ns: MakeNamespace
) -> None:
    """A server that is killed between the two would leave it; a signed one may go at the same time."""
    signed, unsigned = make_pod_ns(), make_pod_ns()
    with ForkedServer(plain_node) as server:
        added(plain_node, S1, unsigned)
        plain_node.host.do("link", "set", host_end(plain_node), "alias", "")
        found = order_of(plain_node, server, S1, unsigned)
        assert found.index("netlink.link-delete:after") < found.index("local.commit:before"), found
        added(plain_node, S2, signed)
        found = order_of(plain_node, server, S2, signed)
        assert found.index("local.commit:before") < found.index("netlink.link-delete:after"), found
    assert not plain_node.leftovers()
