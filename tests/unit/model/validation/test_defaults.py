"""The defaults that are shown: each one of them, of the cluster's own configuration only, and never over a value."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.model.validation.defaults import as_shown

SHOWN = {
    "FelixConfiguration": {
        "bpfConnectTimeLoadBalancing": "TCP",
        "bpfHostNetworkedNATWithoutCTLB": "Enabled",
        "floatingIPs": "Disabled",
        "nftablesMode": "Auto",
    },
    "BGPConfiguration": {"serviceLoadBalancerAggregation": "Enabled"},
}


def record(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("kind", sorted(SHOWN))
def test_the_clusters_own_configuration(kind: str) -> None:
    stored = record(kind, "default", logSeverityScreen="Info")
    assert as_shown(stored)["spec"] == {**SHOWN[kind], "logSeverityScreen": "Info"}
    assert stored["spec"] == {"logSeverityScreen": "Info"}
    assert as_shown({"kind": kind, "metadata": {"name": "default"}})["spec"] == SHOWN[kind]


@pytest.mark.parametrize("kind", sorted(SHOWN))
def test_a_value_that_is_stored_is_shown(kind: str) -> None:
    for field in SHOWN[kind]:
        assert as_shown(record(kind, "default", **{field: "Other"}))["spec"] == {**SHOWN[kind], field: "Other"}


@pytest.mark.parametrize("kind", sorted(SHOWN))
def test_a_nodes_own_configuration_is_shown_as_it_is_stored(kind: str) -> None:
    assert as_shown(record(kind, "node.n1"))["spec"] == {}
