"""An etcd that forbids, or that is reached in another way than before: what an old sandbox's DEL owes is paid in the
end, and the pod's living sandbox keeps everything. Through the executables, one-shot and served.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from cni_calico.model.access import DatastoreConfig
from tests.e2e.calls.test_ownership import POD, REPEATED, S1, S2, S3, require_alive, two_sandboxes
from tests.e2e.etcd import admin
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode, added, addresses, etcd_in
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

slow = pytest.mark.slow
pytestmark = [pytest.mark.etcd, pytest.mark.netns]

FIRST, SECOND = "http://127.0.0.1:2379", "http://127.0.0.2:2379"
LISTENS = ("--listen-client-urls", f"{FIRST},{SECOND}")
RIGHT, NO_RIGHT, WRONG = ("calico", "pa55-w0rd"), ("nobody", "n0-r1ght"), ("calico", "of-yesterday")


@pytest.fixture(params=["one-shot", "served"])
def either_etcd_node(request: pytest.FixtureRequest, host_ns: Namespace, tmp_path: Path) -> Iterator[EtcdNode]:
    """Its etcd answers at two addresses."""
    with ExitStack() as held:
        etcd = held.enter_context(etcd_in(host_ns, tmp_path, arguments=LISTENS))
        made = EtcdNode(host_ns, tmp_path, DatastoreConfig("etcdv3", etcd_endpoints=(FIRST, SECOND)), etcd=etcd)
        (tmp_path / "run").mkdir()
        made.apply_pools()
        if request.param == "served":
            held.enter_context(made.server())
        yield made


def require_users(target: str) -> None:
    """From now on this etcd knows its users; one of them has a right, but none to what is Calico's."""
    with grpc.insecure_channel(target) as channel:
        admin.add_role(channel, "calico-role", "/calico/")
        admin.add_user(channel, *RIGHT, "calico-role")
        admin.add_role(channel, "other-role", "/other/")
        admin.add_user(channel, *NO_RIGHT, "other-role")
        admin.enable(channel, "r00t-w0rd")


def secure(node: EtcdNode) -> None:
    with forks_in(node.host) as forks:
        forks.call(require_users, FIRST.removeprefix("http://"))
    node.datastore = replace(node.datastore, etcd_username=RIGHT[0], etcd_password=RIGHT[1])
    become(node, RIGHT)


def become(node: EtcdNode, who: tuple[str, str]) -> None:
    """As upstream, a plugin has its user from the environment."""
    node.environ |= {"ETCD_USERNAME": who[0], "ETCD_PASSWORD": who[1]}


@pytest.mark.parametrize("how", REPEATED)
@pytest.mark.parametrize(
    "who", [pytest.param(NO_RIGHT, id="without a right"), pytest.param(WRONG, id="a wrong password", marks=slow)]
)
def test_a_repeated_del_of_an_old_sandbox_by_a_user_who_may_nothing(
    either_etcd_node: EtcdNode, make_pod_ns: MakeNamespace, who: tuple[str, str], how: str
) -> None:
    node = either_etcd_node
    secure(node)
    first, living = two_sandboxes(node, make_pod_ns)
    held = node.taken()
    become(node, who)
    refused = node.call("ADD", S3, make_pod_ns().path)
    assert not refused.ok and who[1] not in str(refused.document), refused
    for _ in range(2):
        assert node.call("DEL", S1, args=POD, **({"prevResult": first} if REPEATED[how] else {})).ok
        require_alive(node, living)
    assert len(node.intents()) == 1
    assert not node.call("GC", "", "", **{"cni.dev/valid-attachments": []}).ok
    require_alive(node, living)
    assert node.taken() == held
    become(node, RIGHT)
    added(node, S3, make_pod_ns())  # pays
    assert not node.intents() and held.items() <= node.taken().items()
    assert node.call("DEL", S3).ok
    require_alive(node, living)
    become(node, who)
    assert node.call("DEL", S2, args=POD).ok and living.link("eth0") is None
    become(node, RIGHT)
    assert node.call("DEL", S3).ok  # pays
    assert not node.leftovers()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (f"{FIRST},{SECOND}", "127.0.0.2:2379"),
        ("127.0.0.1:2379,127.0.0.2", SECOND),
        pytest.param(f"{FIRST},{SECOND}", "HTTP://127.0.0.2", marks=slow),
        pytest.param("127.0.0.2", "http://127.0.0.2:2379/", marks=slow),
    ],
)
def test_a_debt_is_paid_through_another_endpoint(
    either_etcd_node: EtcdNode, make_pod_ns: MakeNamespace, then: str, now: str
) -> None:
    node = either_etcd_node
    [address, *_] = addresses(added(node, S1, make_pod_ns(), etcd_endpoints=then))
    node.stop_etcd()
    assert node.call("DEL", S1, etcd_endpoints=then).ok and len(node.intents()) == 1
    node.start_etcd()
    assert address.partition("/")[0] in node.taken()
    added(node, S2, make_pod_ns(), etcd_endpoints=now)
    assert not node.intents() and address.partition("/")[0] not in node.taken()
    assert node.call("DEL", S2, etcd_endpoints=now).ok and not node.leftovers()


def test_another_etcd_is_not_asked_to_pay(either_etcd_node: EtcdNode, make_pod_ns: MakeNamespace) -> None:
    """It would answer that nothing is held there."""
    node = either_etcd_node
    added(node, S1, make_pod_ns(), etcd_endpoints="127.0.0.1:2379")
    node.stop_etcd()
    assert node.call("DEL", S1, etcd_endpoints="127.0.0.1:2379").ok and len(node.intents()) == 1
    other = node.root / "other"
    other.mkdir()
    url = "http://127.0.0.3:2379"
    with etcd_in(node.host, other, arguments=("--listen-client-urls", url, "--advertise-client-urls", url)):
        elsewhere = EtcdNode(node.host, node.root, DatastoreConfig("etcdv3", etcd_endpoints=(url,)))
        elsewhere.apply_pools()
        added(elsewhere, S2, make_pod_ns(), etcd_endpoints="127.0.0.3:2379")
        assert len(node.intents()) == 1
        assert elsewhere.call("DEL", S2, etcd_endpoints="127.0.0.3:2379").ok and len(node.intents()) == 1
    node.start_etcd()
    added(node, S3, make_pod_ns())
    assert not node.intents()
    assert node.call("DEL", S3).ok and not node.leftovers()
