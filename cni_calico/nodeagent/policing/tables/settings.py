"""PURE: what the policy engine's rules depend on besides policies: this node's parameters, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.tables.numbers import Recording
from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort

Networks = tuple[IPv4Network | IPv6Network, ...]
DEFAULT_LOG_PREFIX = "calico-packet"
_IPVS_BITS = 4  # for twelve combinations of policies
_PER_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True)
class LogRate:
    """``count`` lines per ``per_s`` seconds, after a burst of five."""

    count: int
    per_s: int
    burst: int = 5


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """``prefixes``: prefixes of the names of workloads' interfaces.

    ``to_host``: DROP, RETURN or ACCEPT, for packets to the host itself that the policies of a workload let through.
    ``spoofing``: workloads may send from the prefixes they ask for. ``service_networks``: packets to these must not be
    forwarded if they were not translated; ``service_action`` is Drop, Reject or Disabled. ``pass_mark`` and
    ``host_mark`` are one bit each. ``excluded``: names of interfaces, or /expressions/, that never get a host endpoint.
    ``by_iptables``: the packet filter is legacy iptables. ``report_group``: what standing rules drop is reported
    to this group; 0: it is not. ``recording``: what rules do for the recorder of flows; None: nothing. ``mesh_dscp``:
    of new connections in Istio's mesh; None: they are not marked. ``ipvs_marks``: the bits that say by which interface
    a packet has come in that ip_vs forwards; 0: kube-proxy does not use ip_vs.
    """

    prefixes: tuple[str, ...] = ("cali",)
    to_host: str = "DROP"
    reject: bool = False
    drop_invalid: bool = True
    allow_vxlan: bool = False
    allow_ipip: bool = False
    vxlan_port: int = 4789
    ipv6: bool = True
    spoofing: bool = False
    log_prefix: str = DEFAULT_LOG_PREFIX
    log_rate: LogRate | None = None
    pass_mark: int = 0x10000
    host_mark: int = 0x20000
    failsafe_in: tuple[FailsafePort, ...] = INBOUND
    failsafe_out: tuple[FailsafePort, ...] = OUTBOUND
    excluded: tuple[str, ...] = ("kube-ipvs0",)
    health_port: int = 9099
    service_networks: Networks = ()
    service_action: str = "Drop"
    by_iptables: bool = False
    report_group: int = 0
    recording: Recording | None = None
    mesh_dscp: int | None = None
    ipvs_marks: int = 0


def pass_mark_of(mask: int) -> int:
    """The bit of ``mask`` that means "passed on to the next tier": its lowest."""
    return mask & -mask


def host_mark_of(mask: int) -> int:
    """The bit of ``mask`` that means "the stages of hosts have decided": its second."""
    return pass_mark_of(mask ^ pass_mark_of(mask))


def ipvs_marks_of(mask: int) -> int:
    """What of ``mask`` says by which interface a packet came in that ip_vs forwards: all but the two bits above and the
    sixth, which WireGuard's own packets have. 0: too few are left.
    """
    bits = [1 << at for at in range(32) if mask >> at & 1]
    left = [bit for index, bit in enumerate(bits) if index not in (0, 1, 5)]
    return sum(left) if len(left) >= _IPVS_BITS else 0


def filter_settings(
    felix: FelixSettings,
    service_networks: Networks,
    by: str = "nftables",
    report_group: int = 0,
    recording: Recording | None = None,
) -> FilterSettings:
    """``by``: the packet filter, "nftables" or "iptables"."""
    count, _, unit = felix.log_rate.partition("/")
    return FilterSettings(
        prefixes=felix.interface_prefixes,
        to_host=felix.endpoint_to_host,
        reject=felix.filter_deny_action == "Reject",
        drop_invalid=not felix.disable_invalid_check,
        allow_vxlan=felix.allow_vxlan_from_workloads,
        allow_ipip=felix.allow_ipip_from_workloads,
        vxlan_port=felix.vxlan_port,
        ipv6=felix.ipv6_support,
        spoofing=felix.workload_source_spoofing == "Any",
        log_prefix=felix.log_prefix,
        log_rate=LogRate(int(count), _PER_S[unit], felix.log_burst) if unit else None,
        pass_mark=pass_mark_of(felix.mark_mask),
        host_mark=host_mark_of(felix.mark_mask),
        failsafe_in=felix.failsafe_inbound,
        failsafe_out=felix.failsafe_outbound,
        excluded=felix.interface_exclude,
        health_port=felix.health_port,
        service_networks=service_networks,
        service_action=felix.service_loop_prevention,
        by_iptables=by == "iptables",
        report_group=report_group,
        recording=recording,
        mesh_dscp=felix.istio_dscp if felix.istio_ambient == "Enabled" else None,
    )
