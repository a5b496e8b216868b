"""The defaults that are shown: each one of them, of the cluster's own configuration only, and never over a value."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.model.validation.defaults import as_shown, normal_duration, with_defaults

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


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        *(("5m", "5m0s"), ("90s", "1m30s"), ("1h", "1h0m0s"), ("0", "0s"), ("0s", "0s"), ("1.5h", "1h30m0s")),
        *(("1500ms", "1.5s"), ("100ms", "100ms"), ("1.50ms", "1.5ms"), ("250us", "250µs"), ("7ns", "7ns")),
        *(("25h1s", "25h0m1s"), ("1m0.25s", "1m0.25s"), ("5", "5"), ("soon", "soon"), ("", ""), ("5m ", "5m ")),
    ],
)
def test_durations_as_go_writes_them(text: str, stored: str) -> None:
    assert normal_duration(text) == stored
    assert normal_duration(stored) == stored


def test_durations_are_stored_as_upstream_stores_them() -> None:
    given = {
        "FelixConfiguration": {
            "reportingInterval": "5m",
            "logPrefix": "5m",
            "healthTimeoutOverrides": [{"timeout": "1m"}],
        },
        "BGPPeer": {"maxRestartTime": "2m", "asNumber": 7},
        "KubeControllersConfiguration": {"controllers": {"node": {"reconcilerPeriod": "5m", "leakGracePeriod": "15m"}}},
        "Node": {"reportingInterval": "5m"},
    }
    stored = {kind: with_defaults(record(kind, "default", **spec))["spec"] for kind, spec in given.items()}
    assert stored == {
        "FelixConfiguration": {
            "reportingInterval": "5m0s",
            "logPrefix": "5m",
            "healthTimeoutOverrides": [{"timeout": "1m0s"}],
        },
        "BGPPeer": {"maxRestartTime": "2m0s", "asNumber": 7},
        "KubeControllersConfiguration": {
            "controllers": {"node": {"reconcilerPeriod": "5m0s", "leakGracePeriod": "15m0s"}}
        },
        "Node": {"reportingInterval": "5m"},
    }


@pytest.mark.parametrize("text", ["1" * 5000 + "s", "1." + "1" * 5000 + "s"])
def test_a_duration_of_thousands_of_digits_is_left_to_validation(text):
    """Python does not make numbers of them."""
    assert normal_duration(text) == text
