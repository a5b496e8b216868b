"""PURE: the environment of calico-typha: upstream's TYPHA_ variables, as far as they mean something here.

Rule: a wrong value, and a set of variables that cannot work together, is an error that names them, all at once.
Variables of upstream's that tune its own protocol are accepted and named as without effect. "none" means the empty
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.daemon.settings_table import (
    FLAG,
    NAMES,
    PORT,
    SECONDS,
    TEXT,
    choice,
    number,
    setting,
    settings_of,
    settings_table,
)
from cni_calico.errors import InvalidConfig
from cni_calico.relay.tokens import AUDIENCE, Accepted

PREFIX = "TYPHA_"
WITHOUT_EFFECT = (
    "SNAPSHOTCACHEMAXBATCHSIZE",
    "SERVERMAXMESSAGESIZE",
    "SERVERMINBATCHINGAGETHRESHOLDSECS",
    "SERVERPINGINTERVALSECS",
    "SERVERPONGTIMEOUTSECS",
    "SERVERNEWCLIENTFALLBEHINDGRACEPERIOD",
    "LOGFILEPATH",
    "LOGSEVERITYFILE",
    "LOGSEVERITYSYS",
    "PROMETHEUSGOMETRICSENABLED",
    "PROMETHEUSPROCESSMETRICSENABLED",
    "DEBUGMEMORYPROFILEPATH",
    "DEBUGDISABLELOGDROPPING",
    "DEBUGHOST",
    "DEBUGPORT",
    "K8SPORTNAME",
)
_ETCD = ("ETCDADDR", "ETCDSCHEME", "ETCDKEYFILE", "ETCDCERTFILE", "ETCDCAFILE", "ETCDENDPOINTS")
_LEVEL = choice(
    "debug",
    "info",
    "warning",
    "error",
    "none",
    spellings={"trace": "debug", "warn": "warning", "critical": "error", "fatal": "error", "panic": "error"},
)
_COUNT = number(1, 1_000_000)


@settings_table
class RelaySettings:
    """The variables without TYPHA_. Names are not case-sensitive, as upstream's."""

    datastore_type: str = setting(
        "DATASTORETYPE",
        choice("kubernetes", "etcdv3"),
        "kubernetes",
        "The datastore; etcd needs no relay.",
        section="Relay",
    )
    server_host: str = setting("SERVERHOST", TEXT, "", "The address to serve on; empty: all.")
    server_port: int = setting("SERVERPORT", number(0, 65535), 5473, "The port to serve on; 0: 5473.")
    certificate: str = setting("SERVERCERTFILE", TEXT, "", "The relay's certificate; required.")
    key: str = setting("SERVERKEYFILE", TEXT, "", "The certificate's key; required.")
    ca: str = setting("CAFILE", TEXT, "", "The certificate authority of clients; empty: only tokens are accepted.")
    client_cn: str = setting("CLIENTCN", TEXT, "", "The common name of clients' certificates.")
    client_uri: str = setting("CLIENTURISAN", TEXT, "", "A URI among the alternative names of clients' certificates.")
    client_accounts: tuple[str, ...] = setting(
        "CLIENTSERVICEACCOUNTS",
        NAMES,
        ("kube-system:calico-node",),
        "Not a variable of upstream's: the service accounts (NAMESPACE:NAME) whose tokens are accepted.",
    )
    audience: str = setting(
        "CLIENTTOKENAUDIENCE",
        TEXT,
        AUDIENCE,
        "Not a variable of upstream's: the audience of the tokens that agents have for relays; none: no own one.",
    )
    api_tokens: bool = setting(
        "CLIENTAPITOKENS",
        FLAG,
        True,
        "Not a variable of upstream's: accept agents' tokens for the API server, too; false once all agents send those "
        "of TYPHA_CLIENTTOKENAUDIENCE.",
    )
    namespace: str = setting("K8SNAMESPACE", TEXT, "kube-system", "The namespace of the relays' Service.")
    service: str = setting("K8SSERVICENAME", TEXT, "calico-typha", "The Service whose endpoints are the relays.")
    balancing: str = setting(
        "CONNECTIONREBALANCINGMODE",
        choice("none", "kubernetes"),
        "none",
        "kubernetes: clients above a fair share are sent to other relays, one every TYPHA_CONNECTIONDROPINTERVALSECS.",
    )
    drop_interval_s: float = setting(
        "CONNECTIONDROPINTERVALSECS", SECONDS, 1.0, "The time from one client that is sent away to the next."
    )
    poll_s: float = setting("K8SSERVICEPOLLINTERVALSECS", SECONDS, 30.0, "How often the relays are counted.")
    lower_limit: int = setting("MAXCONNECTIONSLOWERLIMIT", _COUNT, 400, "The smallest fair share.")
    upper_limit: int = setting("MAXCONNECTIONSUPPERLIMIT", _COUNT, 10_000, "The maximum number of connections.")
    behind_s: float = setting(
        "SERVERMAXFALLBEHINDSECS",
        SECONDS,
        30.0,
        "A client that has not read for this long is disconnected; upstream: 300s.",
    )
    handshake_s: float = setting(
        "SERVERHANDSHAKETIMEOUTSECS", SECONDS, 10.0, "How long a client may take until its request has arrived."
    )
    shutdown_s: float = setting(
        "SHUTDOWNTIMEOUTSECS", SECONDS, 300.0, "The most time for sending clients away at SIGTERM."
    )
    shutdown_interval_s: float = setting(
        "SHUTDOWNCONNECTIONDROPINTERVALMAXSECS", SECONDS, 1.0, "The longest pause between two clients at SIGTERM."
    )
    health: bool = setting("HEALTHENABLED", FLAG, False, "Serve /liveness and /readiness.", section="What is told")
    health_host: str = setting("HEALTHHOST", TEXT, "localhost", "Address of the health pages.")
    health_port: int = setting("HEALTHPORT", PORT, 9098, "Port of the health pages.")
    metrics: bool = setting("PROMETHEUSMETRICSENABLED", FLAG, False, "Serve /metrics.")
    metrics_host: str = setting("PROMETHEUSMETRICSHOST", TEXT, "", "Address of the metrics; empty: all addresses.")
    metrics_port: int = setting("PROMETHEUSMETRICSPORT", PORT, 9093, "Port of the metrics.")
    log_level: str = setting("LOGSEVERITYSCREEN", _LEVEL, "info", "Log level.")


def parse_relay_settings(environ: Mapping[str, str]) -> tuple[RelaySettings, tuple[str, ...]]:
    """The settings, and what is set without an effect. Raises InvalidConfig naming all variables that are wrong."""
    given = {name.upper(): text.strip() for name, text in environ.items() if name.upper().startswith(PREFIX)}
    values: dict[str, Any] = {}
    wrong, known = [], set()
    for one in settings_of(RelaySettings):
        name = PREFIX + one.name
        known.add(name)
        text = given.get(name, "")
        if not text:
            continue
        if text.lower() == "none" and one.name not in ("CONNECTIONREBALANCINGMODE", "LOGSEVERITYSCREEN"):
            values[one.attribute] = type(one.default)()
            continue
        try:
            values[one.attribute] = one.kind.parse(text)
        except ValueError as e:
            wrong.append(f"{name}={text!r}: {e}")
    settings = RelaySettings(**values)
    wrong += _contradictions(settings)
    if wrong:
        raise InvalidConfig("cannot use the environment: " + "; ".join(wrong))
    return settings, tuple(_strangers(given, known))


def _contradictions(settings: RelaySettings) -> list[str]:
    found = []
    if settings.datastore_type == "etcdv3":
        found.append(
            "TYPHA_DATASTORETYPE=etcdv3: a relay is for the Kubernetes datastore; with etcd use etcd grpc-proxy"
        )
    if not settings.certificate or not settings.key:
        found.append("TYPHA_SERVERCERTFILE and TYPHA_SERVERKEYFILE are needed: a relay is only served over TLS")
    named = settings.client_cn or settings.client_uri
    if bool(settings.ca) != bool(named):
        found.append("TYPHA_CAFILE and TYPHA_CLIENTCN or TYPHA_CLIENTURISAN belong together")
    if not settings.audience and not settings.api_tokens:
        found.append("TYPHA_CLIENTTOKENAUDIENCE=none and TYPHA_CLIENTAPITOKENS=false leave no token to accept")
    found += [
        f"TYPHA_CLIENTSERVICEACCOUNTS: expected NAMESPACE:NAME, not {each!r}"
        for each in settings.client_accounts
        if each.count(":") != 1
    ]
    return found


def _strangers(given: Mapping[str, str], known: set[str]) -> list[str]:
    texts = []
    for name in sorted(given.keys() - known):
        if name.removeprefix(PREFIX) in WITHOUT_EFFECT:
            texts.append(f"{name} has no effect: it is about upstream's Typha")
        elif name.removeprefix(PREFIX) in _ETCD:
            texts.append(f"{name} has no effect: a relay is for the Kubernetes datastore")
        elif name.startswith(f"{PREFIX}PROMETHEUSMETRICS"):
            texts.append(f"{name} has no effect: metrics are served without TLS")
        else:
            texts.append(f"{name} is unknown")
    return texts


def accepted_of(settings: RelaySettings) -> Accepted:
    """Which tokens are accepted; users as the API server names them."""
    users = frozenset(f"system:serviceaccount:{account}" for account in settings.client_accounts)
    return Accepted(users, settings.audience, settings.api_tokens)
