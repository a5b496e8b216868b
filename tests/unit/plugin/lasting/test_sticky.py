"""Identities that users give: which a pod or container has, and who may take its address."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any

import pytest

from cni_calico.errors import InvalidAnnotation, TryAgain
from cni_calico.ipam.assign import AssignRequest
from cni_calico.log import SILENT
from cni_calico.model.lasting import HANDLE_MAX, AddressOwners, Identity, LastingKind, parse_kept
from cni_calico.model.resources import IPPool, Metadata
from cni_calico.plugin.annotations import PodRequest, parse_pod_annotations
from cni_calico.plugin.attachment import Attachment
from cni_calico.plugin.lasting.sticky import fits_pools, plan_identity, require_free

POD = Attachment("net", "n1", "k8s", "ns", "web-2", "c" * 64, "eth0")
CONTAINER = replace(POD, orchestrator="cni", namespace="default", workload="c" * 64, name="web")
REQUEST = AssignRequest("n1", "net.c", {}, num4=1)


def wish(pod: dict[str, str], namespace: dict[str, str] | None = None) -> PodRequest:
    def obj(name: str, annotations: dict[str, str] | None) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "ns", "annotations": annotations or {}}}

    conf: Any = SimpleNamespace(
        ip_addrs_no_ipam=True, floating_ips=False, ipam=SimpleNamespace(is_calico=True, type="")
    )
    return parse_pod_annotations(obj("web-2", pod), obj("ns", namespace), conf)


def task(pods: dict[str, Any] | None = None, recorded: bool = False) -> Any:
    """A call whose API server has these pods, and whose datastore has the endpoint that is asked for, or not."""

    def get(path: str, deadline: Any, doing: str) -> Any:
        return (pods or {}).get(path.rpartition("/")[2])

    store = SimpleNamespace(get=lambda key, deadline: object() if recorded else None)
    args = SimpleNamespace(pod_uid="")
    kubernetes = SimpleNamespace(api=SimpleNamespace(get=get))
    return SimpleNamespace(
        kubernetes=kubernetes, deadline=None, call=SimpleNamespace(args=args), log=SILENT, fresh_store=store
    )


def stateful(name: str = "web", *, controller: bool = True, kind: str = "StatefulSet") -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": controller}
    return {"web-2": {"metadata": {"name": "web-2", "ownerReferences": [reference]}}}


@pytest.mark.parametrize(
    ("pod", "namespace", "wanted"),
    [
        ({}, {}, ("", "")),
        ({"cni-calico.io/sticky": "true"}, {}, ("true", "")),
        ({"cni-calico.io/sticky": "keep"}, {"cni-calico.io/sticky": "false"}, ("keep", "")),
        ({}, {"cni-calico.io/sticky": "true"}, ("true", "")),
        ({"cni-calico.io/sticky": "false", "cni-calico.io/identity": "a"}, {"cni-calico.io/sticky": "true"}, ("", "")),
        ({"cni-calico.io/identity": "db.main"}, {}, ("true", "db.main")),
        ({"cni-calico.io/identity": "db", "cni-calico.io/sticky": "keep"}, {}, ("keep", "db")),
    ],
)
def test_annotations(pod: dict[str, str], namespace: dict[str, str], wanted: tuple[str, str]) -> None:
    found = wish(pod, namespace)
    assert (found.sticky, found.identity) == wanted


@pytest.mark.parametrize(
    "annotations",
    [
        {"cni-calico.io/sticky": "yes"},
        {"cni-calico.io/sticky": "True"},
        {"cni-calico.io/identity": "A"},
        {"cni-calico.io/identity": "-a"},
        {"cni-calico.io/identity": "a/b"},
        {"cni-calico.io/identity": "a" * 64},
        {"cni-calico.io/identity": "a\n"},
    ],
)
def test_wrong_annotations(annotations: dict[str, str]) -> None:
    with pytest.raises(InvalidAnnotation, match="cannot use annotation cni-calico"):
        wish(annotations)


def test_identities() -> None:
    found = plan_identity(task(stateful()), POD, PodRequest(sticky="true"), REQUEST)
    assert found is not None and found.handle_id(is_kubernetes=True) == "net.sts.ns.web.2"
    assert found.attributes == {"identity": "web.2"}
    kept = plan_identity(task(stateful()), POD, PodRequest(sticky="keep"), REQUEST)
    assert kept is not None and kept.attributes == {"identity": "web.2", "sticky": "keep"}
    named = plan_identity(task(), POD, PodRequest(sticky="true", identity="db"), REQUEST)
    assert named is not None and named.handle_id(is_kubernetes=False) == "net.id.ns.db"
    for pods in ({}, stateful("other"), stateful(controller=False), stateful(kind="ReplicaSet")):
        assert plan_identity(task(pods), POD, PodRequest(sticky="true"), REQUEST) is None
    own = plan_identity(task(), CONTAINER, PodRequest(), REQUEST)
    assert own is not None and own.handle_id(is_kubernetes=False) == "net.id.default.web"
    assert own.attributes == {"identity": "web", "container": "c" * 64, "interface": "eth0"}
    chosen = replace(REQUEST, addresses=(ip_address("10.65.0.9"),))
    assert plan_identity(task(), CONTAINER, PodRequest(), chosen) is None
    with pytest.raises(InvalidAnnotation, match="together with one that names its addresses"):
        plan_identity(task(), POD, PodRequest(sticky="true", addresses=chosen.addresses), chosen)


def test_who_has_the_address() -> None:
    identity = Identity(LastingKind.NAMED, "net", "ns", "db")
    other = AddressOwners({"node": "n2", "namespace": "ns", "pod": "db-0"})
    running, ended = {"status": {"phase": "Running"}}, {"status": {"phase": "Failed", "reason": "Evicted"}}
    with pytest.raises(TryAgain, match="pod ns/db-0 has it"):
        require_free(task({"db-0": running}), POD, identity)(other)
    require_free(task({"db-0": ended}), POD, identity)(other)
    require_free(task(), POD, identity)(other)
    require_free(task({"web-2": running}), POD, identity)(AddressOwners({"namespace": "ns", "pod": "web-2"}))
    require_free(task(), POD, identity)(AddressOwners())
    theirs = AddressOwners({"node": "n2", "identity": "web", "container": "d" * 64, "interface": "eth0"})
    with pytest.raises(TryAgain, match=f"container {12 * 'd'} has it"):
        require_free(task(recorded=True), CONTAINER, identity)(theirs)
    require_free(task(), CONTAINER, identity)(theirs)
    require_free(task(recorded=True), CONTAINER, identity)(AddressOwners({"container": "c" * 64}))
    require_free(task(recorded=True), CONTAINER, identity)(AddressOwners({"container": "-", "node": ""}))


def test_pools() -> None:
    pools = [
        IPPool(Metadata(name), ip_network(cidr), 26) for name, cidr in (("a", "10.65.0.0/24"), ("b", "10.66.0.0/24"))
    ]
    inside, outside = ip_address("10.65.0.9"), ip_address("10.66.0.9")
    for named in (("a",), ("10.65.0.0/24",)):
        fits = fits_pools(replace(REQUEST, pools4=named), pools)
        assert fits(inside) and not fits(outside) and fits(ip_address("fd00::9"))
    assert fits_pools(REQUEST, pools)(outside)


def test_long_names() -> None:
    """Upstream's form where names are free, and the whole name where Kubernetes has them."""
    identity = Identity(LastingKind.MACHINE, "k8s-pod-network", "n" * 60, "m" * 60, {"vmi-name": "m" * 60})
    short = identity.handle_id(is_kubernetes=False)
    assert len(short) <= HANDLE_MAX
    assert short.startswith("k8s-pod-network.vmi._")
    kept = parse_kept(short, {"vmi-name": "m" * 60, "namespace": "n" * 60})
    assert kept is not None and (kept.namespace, kept.name) == ("n" * 60, "m" * 60)
    assert identity.handle_id(is_kubernetes=True) == f"k8s-pod-network.vmi.{'n' * 60}.{'m' * 60}"
    assert parse_kept("a.b.vmi.ns.vm.1", {}) is not None and parse_kept("net.c1", {}) is None
