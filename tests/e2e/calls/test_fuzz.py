"""Nonsense of every kind in configuration, environment and prevResult: a result or a CNI error, never a defect of ours,
never anything left behind.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.cni.versions import SUPPORTED
from tests.e2e.forks import forks_in
from tests.e2e.host import Node
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "true", "0", "-1", "../../etc", "/", "a/b", "10.65.0.1", "10.65.0.1/99", "::", "eth0", "\0"]),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
VALUES = st.recursive(
    SCALARS, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(TEXTS, v, max_size=3)), max_leaves=6
)


@pytest.fixture
def local_forking_node(plain_node: Node) -> Iterator[Node]:
    with forks_in(plain_node.host) as plain_node.forks:
        yield plain_node
    plain_node.forks = None


def base(node: Node, pod: Namespace) -> dict[str, Any]:
    """A configuration that has everything a verb could look at."""
    return {
        **node.conf(),
        "hostname": "h",
        "nodename_file": str(node.root / "nodename"),
        "nodename_file_optional": True,
        "num_queues": 1,
        "require_mtu_file": False,
        "policy": {"type": "", "k8s_auth_token": "t"},
        "kubernetes": {"kubeconfig": "", "k8s_api_root": "", "node_name": ""},
        "container_settings": {"allow_ip_forwarding": False},
        "feature_control": {"floating_ips": False},
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true", "ipv4_pools": ["pool4"]},
        "log_file_max_size": 10,
        "dns": {"nameservers": ["10.0.0.1"]},
        "args": {"org.apache.mesos": {"network_info": {"labels": {"labels": [{"key": "a", "value": "b"}]}}}},
        "runtimeConfig": {"portMappings": []},
        "readiness_gates": [],
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "calic1"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": pod.path}],
            "ips": [{"address": "10.65.0.1/32", "interface": 1}],
            "routes": [{"dst": "10.65.0.1/26"}],
            "dns": {},
        },
        "cni.dev/valid-attachments": [{"containerID": "c9", "ifname": "eth0"}],
    }


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in paths(item, (*path, key)))]


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


FUZZ = settings(
    max_examples=120,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def require_no_defect(node: Node, pod: Namespace, verb: str, stdin: bytes, environ: dict[str, str]) -> None:
    options: dict[str, Any] = {"stdin": stdin, "args": environ.pop("CNI_ARGS", "")}
    node.environ = environ
    reply = node.call(verb, "c1", pod.path, **options)
    if reply.ok and verb == "ADD":
        environ.pop("CNI_COMMAND", None)
        assert node.call("DEL", "c1", pod.path, **options).ok
    elif not reply.ok:
        assert reply.document["code"] != 199 and reply.document["msg"], (reply, (node.root / "cni.log").read_text())
        assert reply.document["cniVersion"] in SUPPORTED
    assert pod.link("eth0") is None and not node.leftovers(), reply


@given(data=st.data(), verb=st.sampled_from(VERBS))
@FUZZ
def test_any_value_in_the_configuration(
    local_forking_node: Node, pod_ns: Namespace, data: st.DataObject, verb: str
) -> None:
    document = base(local_forking_node, pod_ns)
    keep = {"datastore_path", "log_file_path", "ipam_lock_file", "nodename_file"}  # would be written elsewhere
    places = [path for path in paths(document) if not path or path[0] not in keep]
    for _ in range(data.draw(st.integers(1, 2))):
        document = replaced(document, data.draw(st.sampled_from(places)), data.draw(VALUES))
        if not isinstance(document, dict):
            break
        places = [path for path in paths(document) if not path or path[0] not in keep]
    require_no_defect(local_forking_node, pod_ns, verb, json.dumps(document).encode("utf-8", "surrogatepass"), {})


@given(verb=st.sampled_from(VERBS), stdin=st.binary(max_size=60))
@FUZZ
def test_any_bytes_on_stdin(local_forking_node: Node, pod_ns: Namespace, verb: str, stdin: bytes) -> None:
    require_no_defect(local_forking_node, pod_ns, verb, stdin, {})


@given(
    verb=st.sampled_from(VERBS),
    name=st.sampled_from(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS", "CNI_COMMAND")),
    value=TEXTS.filter(lambda text: "\0" not in text and text.isprintable()),
)
@FUZZ
def test_any_value_in_the_environment(
    local_forking_node: Node, pod_ns: Namespace, verb: str, name: str, value: str
) -> None:
    document = base(local_forking_node, pod_ns)
    require_no_defect(local_forking_node, pod_ns, verb, json.dumps(document).encode(), {name: value})
