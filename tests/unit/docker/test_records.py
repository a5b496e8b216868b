"""The records of Docker's containers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.docker.containers import DockerContainer
from cni_calico.docker.records import (
    endpoint_key,
    plan_labels_of,
    plan_profile,
    plan_record,
    profile_name,
    with_identity,
)
from cni_calico.docker.state import DockerEndpoint
from cni_calico.model.documents.codec import decode_endpoint, encode
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.validation.check import require_valid

ENDPOINT = DockerEndpoint("ab12", "net", "boot", 1.0, ["10.65.0.1", "fd00::1"], "02:00:00:00:00:01")
names = st.text(alphabet="abcXYZ019_.-", min_size=1, max_size=80)


def container(name: str, **labels: str) -> DockerContainer:
    return DockerContainer("c" * 64, ContainerIdentity(name, "box", labels=labels))


@given(names, names)
def test_a_profile_s_name_is_valid_and_no_other_network_s(network: str, other: str) -> None:
    for ingress in ("members", "anyone"):
        require_valid(encode(plan_profile(network, ingress, now="2026-01-01T00:00:00Z", uid="u")))
    assert profile_name(profile_name(network)) == profile_name(network)
    assert network == other or profile_name(network) != profile_name(other)
    assert profile_name("shop") == "shop" and profile_name("shop_default").startswith("docker.shop-default-")


def test_upstream_s_key_and_our_labels() -> None:
    labels = plan_labels_of(container("web", app="a"), "shop", {"org.projectcalico.label.app": "b"}, all_labels=True)
    record = plan_record("n-1", ENDPOINT, labels, "shop", "c" * 64, now="2026-01-01T00:00:00Z", uid="u")
    assert record.metadata.name == "n--1-libnetwork-libnetwork-ab12"
    assert record.metadata.labels["cni-calico.io/container"] == "web"
    assert record.profiles == ("shop",) and record.container_id == "c" * 64
    require_valid(encode(record))
    assert decode_endpoint(endpoint_key("n-1", "ab12"), encode(record)) == record
    none = plan_labels_of(container("web", app="a"), "shop", {}, all_labels=False)
    assert "org.projectcalico.label.app" not in none.labels


def test_what_others_have_written_stays() -> None:
    first = plan_record("n", ENDPOINT, plan_labels_of(container(""), "", {}, all_labels=True), "", "", now="t", uid="u")
    theirs = encode(first)
    theirs["metadata"]["labels"]["team"] = "red"
    theirs["spec"]["profiles"] = ["mine"]
    stored = decode_endpoint(endpoint_key("n", "ab12"), theirs)
    labels = plan_labels_of(container("web"), "shop", {}, all_labels=True)
    planned = plan_record("n", ENDPOINT, labels, "shop", "c" * 64, now="t2", uid="u2")
    after = with_identity(stored, planned)
    assert after.metadata.labels["team"] == "red" and after.profiles == ("mine", "shop")
    assert after.metadata.uid == "u" and after.container_id == "c" * 64
    assert with_identity(after, planned) == after


def test_ports_that_were_published_before_the_container_was_known_are_in_its_record() -> None:
    published = replace(ENDPOINT, ports=["tcp * 8080 10.65.0.1 80", "tcp * 8080 fd00::1 80"])
    labels = plan_labels_of(container("web"), "shop", {}, all_labels=True)
    record = plan_record("n", published, labels, "shop", "c" * 64, now="t", uid="u")
    assert [(each.host_port, each.port, each.protocol) for each in record.ports] == [(8080, 80, "TCP")]
    assert with_identity(replace(record, ports=()), record).ports == record.ports
