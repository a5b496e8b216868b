"""A pod's labels on its endpoint: its author's, so they never say that it is a container outside Kubernetes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.identity import CONTAINER, OWN, ContainerIdentity, plan_labels
from cni_calico.model.kubernetes.pods import read_pod

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
