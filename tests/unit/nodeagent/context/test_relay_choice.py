"""Which relay an agent uses, from its FELIX_ variables."""

from __future__ import annotations

import pytest

from cni_calico.model.access import RelayAccess
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.relay import choose_relay


def choose(*, is_kubernetes: bool = True, **environ: str) -> object:
    felix = parse_felix({f"FELIX_{name}": text for name, text in environ.items()})
    assert felix.warnings == ()
    found = choose_relay(felix.settings, is_kubernetes=is_kubernetes)
    return found.access or found.why_not


def test_nothing_is_asked_for() -> None:
    assert choose() == ""
    assert choose(TYPHAK8SSERVICENAME="none") == ""


def test_a_service_and_a_certificate_authority_are_enough() -> None:
    found = choose(TYPHAK8SSERVICENAME="calico-typha", TYPHACAFILE="/ca")
    assert found == RelayAccess(service="calico-typha", ca_file="/ca")


def test_all_of_upstreams_variables() -> None:
    found = choose(
        TYPHAADDR="typha:5473",
        TYPHAK8SNAMESPACE="calico-system",
        TYPHACAFILE="/ca",
        TYPHACERTFILE="/crt",
        TYPHAKEYFILE="/key",
        TYPHACN="typha-server",
        TYPHAURISAN="spiffe://t",
    )
    assert found == RelayAccess("typha:5473", "", "calico-system", "/ca", "/crt", "/key", "typha-server", "spiffe://t")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"TYPHAK8SSERVICENAME": "calico-typha"}, "FELIX_TYPHACAFILE is missing"),
        ({"TYPHAADDR": "t:1", "TYPHACAFILE": "/ca", "TYPHACERTFILE": "/crt"}, "FELIX_TYPHAKEYFILE belong together"),
    ],
)
def test_what_cannot_be_used_is_said(environ: dict[str, str], text: str) -> None:
    assert text in str(choose(**environ))


def test_with_etcd_there_is_no_relay() -> None:
    assert "etcd grpc-proxy" in str(choose(is_kubernetes=False, TYPHAADDR="t:1", TYPHACAFILE="/ca"))


def test_an_address_that_is_none_is_a_warning() -> None:
    felix = parse_felix({"FELIX_TYPHAADDR": "typha:many"})
    assert "expected host:port" in felix.warnings[0]
    assert choose_relay(felix.settings, is_kubernetes=True).access is None
