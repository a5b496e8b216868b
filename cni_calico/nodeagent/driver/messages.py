"""What only a driver of another data plane is told, as messages (felix.proto), and what such a driver says.

Rule: what is told is what is stored or in effect, never what this node's kernel happens to have. Whoever cannot be
understood is not guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from cni_calico.daemon.settings_table import settings_of
from cni_calico.nodeagent.context.configurations import sources_of
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.unused import TABLE, names_of
from cni_calico.nodeagent.sync.known import EndpointName
from cni_calico.nodeagent.sync.messages import encode_envelope, encode_tiers, render_address, utf8
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.policy.wanted import WantedHost, WantedHostClass
from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from cni_calico.nodeagent.sync import felix_pb2 as pb


# -- host endpoints ---------------------------------------------------------------------------------------------------


def encode_host(host: WantedHost, its: WantedHostClass) -> bytes:
    """``its``: the host endpoint's class."""
    addresses = list(map(render_address, host.expected))
    endpoint = pb.HostEndpoint(
        name=host.interface,
        profile_ids=[utf8(profile.name) for profile in its.profiles],
        tiers=encode_tiers(its.ingress, its.egress),
        expected_ipv4_addrs=[one for one in addresses if ":" not in one],
        expected_ipv6_addrs=[one for one in addresses if ":" in one],
        untracked_tiers=encode_tiers(its.raw_ingress, its.raw_egress),
        pre_dnat_tiers=encode_tiers(its.before_nat, ()),
        forward_tiers=encode_tiers(its.forward_ingress, its.forward_egress),
    )
    return encode_envelope(host_endpoint_update=pb.HostEndpointUpdate(id=_host_id(host), endpoint=endpoint))


def encode_host_removal(host: WantedHost) -> bytes:
    return encode_envelope(host_endpoint_remove=pb.HostEndpointRemove(id=_host_id(host)))


def _host_id(host: WantedHost) -> Any:
    return pb.HostEndpointID(endpoint_id=utf8(host.key.name))


# -- parameters -------------------------------------------------------------------------------------------------------


def select_config(environ: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """The parameters of Felix that are set, by upstream's names: of each the text that counts."""
    names = {item.name.lower(): item.name for item in settings_of(FelixSettings)}
    names |= {name.lower(): name for name in names_of(TABLE)}
    found: dict[str, str] = {}
    for _, texts in sources_of(environ, snapshot.felix_node, snapshot.felix_default, snapshot.felix_scoped):
        for lower, (given, text) in texts.items():
            if text:
                found.setdefault(names.get(lower, given), text)
    return found


def encode_config(config: Mapping[str, str]) -> bytes:
    texts = {utf8(name): utf8(text) for name, text in config.items()}
    return encode_envelope(config_update=pb.ConfigUpdate(config=texts))


# -- what a driver says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriverSaid:
    """The state of a workload's endpoint, or of the host endpoint ``host``: "up", "down", "error"; "": it has none."""

    status: str
    workload: EndpointName | None = None
    host: str = ""


def parse_said(data: bytes) -> DriverSaid | None:
    """A FromDataplane; None if it is about something else. Raises ValueError."""
    try:
        message = pb.FromDataplane.FromString(data)
    except DecodeError as e:
        raise ValueError(f"it is no message: {e}") from e
    kind = message.WhichOneof("payload")
    if kind is None:
        return None
    said = getattr(message, kind)
    status = said.status.status if kind.endswith("_update") else ""
    if kind.startswith("host_"):
        return DriverSaid(status, host=said.id.endpoint_id)
    return DriverSaid(status, (said.id.orchestrator_id, said.id.workload_id, said.id.endpoint_id))
