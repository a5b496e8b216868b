"""PURE: which relay the agent follows the cluster through, from its parameters.

Rule: without a certificate authority there is no relay: a relay that cannot be verified is not trusted, and no token is
sent to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.model.access import RelayAccess
from cni_calico.nodeagent.context.felix import FelixSettings


@dataclass(frozen=True, slots=True)
class RelayChoice:
    """``access`` None: no relay; ``why_not`` says why, "" if none was asked for."""

    access: RelayAccess | None = None
    why_not: str = ""


def choose_relay(felix: FelixSettings, *, is_kubernetes: bool) -> RelayChoice:
    """``is_kubernetes``: the datastore is Kubernetes."""
    named = "FELIX_TYPHAADDR" if felix.relay_address else "FELIX_TYPHAK8SSERVICENAME"
    if not felix.relay_address and not felix.relay_service:
        return RelayChoice()
    if not is_kubernetes:
        return RelayChoice(why_not=f"{named} has no effect: with etcd put etcd grpc-proxy in front of it")
    if not felix.relay_ca:
        return RelayChoice(
            why_not=f"{named} is not used, because FELIX_TYPHACAFILE is missing: a relay is only used over TLS. "
            "Upstream's Typha speaks another protocol; if that runs here, set FELIX_TYPHAK8SSERVICENAME to none"
        )
    if bool(felix.relay_certificate) != bool(felix.relay_key):
        return RelayChoice(why_not=f"{named} is not used: FELIX_TYPHACERTFILE and FELIX_TYPHAKEYFILE belong together")
    return RelayChoice(
        RelayAccess(
            address=felix.relay_address,
            service=felix.relay_service,
            namespace=felix.relay_namespace,
            ca_file=felix.relay_ca,
            certificate_file=felix.relay_certificate,
            key_file=felix.relay_key,
            common_name=felix.relay_common_name,
            uri=felix.relay_uri,
            token_file=felix.relay_token_file,
        )
    )
