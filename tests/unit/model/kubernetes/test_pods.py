"""A pod's labels on its endpoint: its author's, so they never say that it is a container outside Kubernetes. And its
addresses, which are read as ``ipaddress`` reads them.
"""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import example, given
from hypothesis import strategies as st

from cni_calico.model.documents.fields import Wrong
from cni_calico.model.identity import CONTAINER, OWN, ContainerIdentity, plan_labels
from cni_calico.model.kubernetes.pods import pod_networks, read_pod

COMPOSE = {"com.docker.compose.project": "shop", "com.docker.compose.service": "db"}
OF_A_CONTAINER = plan_labels(ContainerIdentity("db", "postgres", "shop", COMPOSE), "backend").labels
TAKEN = {
    "projectcalico.org/namespace": "default",
    "projectcalico.org/orchestrator": "k8s",
    "projectcalico.org/serviceaccount": "web",
}


def labels_of(labels: dict[str, str]) -> dict[str, str]:
    found = read_pod(
        {
            "metadata": {"name": "web-0", "namespace": "default", "labels": labels},
            "spec": {"nodeName": "n1", "serviceAccountName": "web"},
        }
    )
    assert found is not None
    return dict(found[1]["metadata"]["labels"])


@given(st.dictionaries(st.sampled_from(["app", "cni-calico.io/check", CONTAINER, *OF_A_CONTAINER]), st.text()))
def test_a_pod_cannot_pass_for_a_container(labels: dict[str, str]) -> None:
    ours = {key for key in OF_A_CONTAINER if not key.startswith(OWN)}
    assert len(ours) == 6
    assert labels_of(labels) == {key: value for key, value in labels.items() if key not in ours} | TAKEN


NUMBERS = st.one_of(st.integers(0, 260).map(str), st.sampled_from(["", "00", "01", "+1", " 1", "1\n", "\u0663", "1_0"]))
ADDRESSES = st.lists(NUMBERS, min_size=3, max_size=5).map(".".join)


@given(st.builds(str.__add__, ADDRESSES, st.sampled_from(["", "/32", "/32/32", "/24", "/032", "/"])))
@example("10.65.0.1")
@example("10.65.0.1/32")
@example("fd00::1")
def test_an_address_is_what_ipaddress_makes_of_it(text: str) -> None:
    try:
        wanted = [str(ip_network(text, strict=False))]
    except ValueError:
        wanted = []
    try:
        found = pod_networks({"metadata": {}, "status": {"podIP": text}})
    except Wrong:
        found = []
    assert found == wanted
