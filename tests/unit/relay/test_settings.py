"""The environment of calico-typha."""

from __future__ import annotations

import pytest

from cni_calico.errors import InvalidConfig
from cni_calico.relay.balance import fair_share
from cni_calico.relay.main import run
from cni_calico.relay.settings import RelaySettings, accepted_of, parse_relay_settings

TLS = {"TYPHA_SERVERCERTFILE": "/tls/tls.crt", "TYPHA_SERVERKEYFILE": "/tls/tls.key"}


def test_upstreams_defaults_and_names() -> None:
    settings, without = parse_relay_settings({**TLS, "typha_HealthEnabled": "true", "TYPHA_HEALTHPORT": "1234"})
    assert (settings.server_port, settings.health_port, settings.metrics_port) == (5473, 1234, 9093)
    assert settings.health
    assert not settings.metrics
    assert without == ()


def test_a_certificate_is_needed() -> None:
    with pytest.raises(InvalidConfig, match="TYPHA_SERVERCERTFILE and TYPHA_SERVERKEYFILE are needed"):
        parse_relay_settings({})


def test_all_that_is_wrong_is_named_at_once() -> None:
    environ = {
        "TYPHA_SERVERPORT": "many",
        "TYPHA_HEALTHENABLED": "perhaps",
        "TYPHA_CAFILE": "/ca",
        "TYPHA_DATASTORETYPE": "etcdv3",
        "TYPHA_CLIENTSERVICEACCOUNTS": "calico-node",
    }
    with pytest.raises(InvalidConfig) as refused:
        parse_relay_settings(environ)
    text = str(refused.value)
    for part in ("TYPHA_SERVERPORT='many'", "TYPHA_HEALTHENABLED='perhaps'", "etcd grpc-proxy", "belong together"):
        assert part in text
    assert "expected NAMESPACE:NAME, not 'calico-node'" in text


def test_what_has_no_effect_is_named() -> None:
    _, without = parse_relay_settings({**TLS, "TYPHA_SERVERPINGINTERVALSECS": "5", "TYPHA_TYPO": "x"})
    assert without == (
        "TYPHA_SERVERPINGINTERVALSECS has no effect: it is about upstream's Typha",
        "TYPHA_TYPO is unknown",
    )


def test_none_is_the_empty_value() -> None:
    settings, _ = parse_relay_settings({**TLS, "TYPHA_K8SSERVICENAME": "none", "TYPHA_SERVERPORT": "none"})
    assert (settings.service, settings.server_port) == ("", 0)


def test_accounts_are_called_as_the_api_server_calls_them() -> None:
    settings, _ = parse_relay_settings({**TLS, "TYPHA_CLIENTSERVICEACCOUNTS": "kube-system:calico-node,a:b"})
    assert accepted_of(settings).users == {"system:serviceaccount:kube-system:calico-node", "system:serviceaccount:a:b"}


@pytest.mark.parametrize(
    ("nodes", "relays", "share"),
    [
        (100, 1, 10_000),
        (100, 2, 400),
        (1000, 2, 1201),
        (1000, 5, 400),
        (5000, 11, 601),
        (50_000, 2, 10_000),
        (9, 0, 10_000),
    ],
)
def test_a_fair_share_is_upstreams(nodes: int, relays: int, share: int) -> None:
    assert fair_share(nodes, relays, RelaySettings()) == share


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], {}) == run(["-v"], {}) == 0
    assert run(["--help"], {}) == 0
    assert run(["--config-file=/etc/calico/typha.cfg"], {}) == 2
    assert run(["now"], {}) == 2
    assert run([], {}) == 1
    printed = capsys.readouterr()
    assert "set TYPHA_ variables" in printed.err
    assert "there is no argument 'now'" in printed.err
    assert "a relay is only served over TLS" in printed.err
