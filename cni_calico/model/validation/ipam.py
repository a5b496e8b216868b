"""PURE: rules for pools, reservations, nodes and workload endpoints.

Rule: each function checks one kind's spec and records in the report what is wrong. Source: upstream's validation.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_interface
from typing import Any

from cni_calico.model import names
from cni_calico.model.resources import BLOCK_SIZES, IPPool, Network
from cni_calico.model.validation.report import Report, Spec

MODES = ("Never", "Always", "CrossSubnet")
USES = ("Workload", "Tunnel", "LoadBalancer")
ASSIGNMENT = ("Automatic", "Manual")
LINK_LOCAL: dict[int, Network] = {4: IPv4Network("169.254.0.0/16"), 6: IPv6Network("fe80::/10")}


# -- pools ------------------------------------------------------------------------------------------------------------


def check_pool(report: Report, spec: Spec) -> None:
    cidr = report.network("spec.cidr", spec.get("cidr"), strict=True)
    ipip = report.choice("spec.ipipMode", spec.get("ipipMode"), MODES)
    vxlan = report.choice("spec.vxlanMode", spec.get("vxlanMode"), MODES)
    if ipip not in ("", "Never") and vxlan not in ("", "Never"):
        report.wrong("spec.vxlanMode", vxlan, f"ipipMode is {ipip}: a pool cannot have both encapsulations")
    if cidr is not None:
        _check_pool_cidr(report, spec, cidr)
        if ipip not in ("", "Never") and cidr.version == 6:
            report.wrong("spec.ipipMode", ipip, "IPIP is not supported on an IPv6 pool; use vxlanMode")
    for field in ("natOutgoing", "disabled", "disableBGPExport"):
        report.boolean(f"spec.{field}", spec.get(field))
    for field in ("nodeSelector", "namespaceSelector"):
        report.selector(f"spec.{field}", spec.get(field))
    for field in ("ipip", "nat-outgoing"):
        if spec.get(field):
            report.wrong(f"spec.{field}", spec[field], "belongs to an older API; use ipipMode and natOutgoing")
    report.choice("spec.assignmentMode", spec.get("assignmentMode"), ASSIGNMENT)
    _check_uses(report, spec)


def _check_pool_cidr(report: Report, spec: Spec, cidr: Network) -> None:
    low, high, default = BLOCK_SIZES[cidr.version]
    size = spec.get("blockSize")
    if size in (None, 0) and size is not False:
        size = default
    elif type(size) is not int or not low <= size <= high:
        report.wrong("spec.blockSize", size, f"must be from {low} to {high} for an IPv{cidr.version} pool")
        return
    if cidr.prefixlen > size:
        report.wrong("spec.cidr", str(cidr), f"the pool is smaller than one of its blocks (blockSize {size})")
    if cidr.overlaps(LINK_LOCAL[cidr.version]):
        report.wrong("spec.cidr", str(cidr), f"overlaps with the link-local range {LINK_LOCAL[cidr.version]}")


def _check_uses(report: Report, spec: Spec) -> None:
    given = report.list("spec.allowedUses", spec.get("allowedUses"))
    uses = [report.choice(f"spec.allowedUses[{i}]", use, USES) for i, use in enumerate(given)]
    if "LoadBalancer" not in uses:
        return
    for field in ("ipipMode", "vxlanMode"):
        if spec.get(field) not in (None, "", "Never"):
            report.wrong(f"spec.{field}", spec[field], "a pool of load balancer addresses has no encapsulation")
    if spec.get("disableBGPExport") is True:
        report.wrong("spec.disableBGPExport", True, "addresses of load balancers must be announced")
    if len(set(uses)) > 1:
        report.wrong("spec.allowedUses", spec.get("allowedUses"), "LoadBalancer cannot be combined with other uses")
    if spec.get("nodeSelector") not in (None, "", "all()"):
        report.wrong("spec.nodeSelector", spec["nodeSelector"], "must be all() for a pool of load balancer addresses")


def check_pool_update(report: Report, spec: Spec, old: Spec) -> None:
    """A pool from which blocks have been cut cannot be moved."""
    for field in ("cidr", "blockSize"):
        before, now = old.get(field), spec.get(field)
        if field == "blockSize":
            default = BLOCK_SIZES[6 if ":" in str(old.get("cidr")) else 4][2]
            before, now = before or default, now or default
        if before != now:
            report.wrong(f"spec.{field}", now, f"cannot be changed (it is {before}); create a new pool instead")


def check_pool_overlap(report: Report, name: str, spec: Spec, pools: Iterable[IPPool]) -> None:
    mine = Report("").network("", spec.get("cidr"))
    for pool in pools:
        if mine is not None and pool.metadata.name != name and mine.version == pool.cidr.version:
            if mine.overlaps(pool.cidr):
                reason = f"overlaps with IPPool {pool.metadata.name}, whose cidr is {pool.cidr}"
                report.wrong("spec.cidr", str(mine), reason)


def check_reservation(report: Report, spec: Spec) -> None:
    for i, cidr in enumerate(report.list("spec.reservedCIDRs", spec.get("reservedCIDRs"))):
        at = f"spec.reservedCIDRs[{i}]"
        if "/" in str(cidr):
            report.network(at, cidr)
        else:
            report.address(at, cidr)


# -- nodes ------------------------------------------------------------------------------------------------------------


def check_node(report: Report, spec: Spec) -> None:
    bgp = report.object("spec.bgp", spec.get("bgp"))
    if spec.get("bgp") == {}:
        report.wrong("spec.bgp", {}, "must not be empty; leave it out")
    for version in (4, 6):
        _check_node_address(report, f"spec.bgp.ipv{version}Address", bgp.get(f"ipv{version}Address"), version)
        field = f"ipv{version}VXLANTunnelAddr"
        if spec.get(field) not in (None, ""):
            report.address(f"spec.{field}", spec[field], version)
    for field in ("ipv4IPIPTunnelAddr", "routeReflectorClusterID"):
        if bgp.get(field) not in (None, ""):
            report.address(f"spec.bgp.{field}", bgp[field], 4)
    report.as_number("spec.bgp.asNumber", bgp.get("asNumber"))
    for field in ("vxlanTunnelMACAddr", "vxlanTunnelMACAddrV6"):
        report.mac(f"spec.{field}", spec.get(field))
    for i, ref in enumerate(report.list("spec.orchRefs", spec.get("orchRefs"))):
        if not report.object(f"spec.orchRefs[{i}]", ref).get("orchestrator"):
            report.wrong(f"spec.orchRefs[{i}].orchestrator", None, "must be given")


def _check_node_address(report: Report, at: str, raw: Any, version: int) -> None:
    text = report.string(at, raw)
    if not text:
        return
    try:
        if ip_interface(text).version == version:
            return
    except ValueError:
        pass
    report.wrong(at, raw, f"must be an IPv{version} address with its prefix length")


# -- workload endpoints -----------------------------------------------------------------------------------------------


def check_endpoint(report: Report, spec: Spec, name: str) -> None:
    for field in ("orchestrator", "node", "endpoint"):
        if not report.string(f"spec.{field}", spec.get(field)):
            report.wrong(f"spec.{field}", spec.get(field), "must be given")
    expected = _expected_name(spec)
    if expected and name != expected:
        report.wrong("metadata.name", name, f"must be {expected}, as its node, orchestrator, workload and endpoint say")
    interface = report.string("spec.interfaceName", spec.get("interfaceName"))
    if interface and not names.valid_ifname(interface):
        report.wrong("spec.interfaceName", interface, "is not a valid interface name")
    report.mac("spec.mac", spec.get("mac"))
    report.names("spec.profiles", spec.get("profiles"))
    for version in (4, 6):
        if spec.get(f"ipv{version}Gateway"):
            report.address(f"spec.ipv{version}Gateway", spec[f"ipv{version}Gateway"], version)
    networks = [
        report.network(f"spec.ipNetworks[{i}]", raw if "/" in str(raw) else f"{raw}/{128 if ':' in str(raw) else 32}")
        for i, raw in enumerate(report.list("spec.ipNetworks", spec.get("ipNetworks")))
    ]
    for i, network in enumerate(networks):
        if network is not None and network.prefixlen != network.max_prefixlen:
            report.wrong(f"spec.ipNetworks[{i}]", str(network), "must be a single address")
    _check_nats(report, spec, {network.network_address for network in networks if network is not None})
    _check_ports(report, spec)
    for i, raw in enumerate(report.list("spec.allowSpoofedSourcePrefixes", spec.get("allowSpoofedSourcePrefixes"))):
        report.network(f"spec.allowSpoofedSourcePrefixes[{i}]", raw)


def _expected_name(spec: Spec) -> str:
    workload = spec.get("pod") if spec.get("orchestrator") == "k8s" else spec.get("containerID")
    if spec.get("orchestrator") not in ("k8s", "cni") or not workload:
        return ""
    try:
        return names.endpoint_name(
            str(spec.get("node")), spec["orchestrator"], str(workload), str(spec.get("endpoint"))
        )
    except ValueError:
        return ""


def _check_nats(report: Report, spec: Spec, own: set[Any]) -> None:
    for i, raw in enumerate(report.list("spec.ipNATs", spec.get("ipNATs"))):
        at = f"spec.ipNATs[{i}]"
        nat = report.object(at, raw)
        internal = report.address(f"{at}.internalIP", nat.get("internalIP"))
        external = report.address(f"{at}.externalIP", nat.get("externalIP"))
        if internal is not None and internal not in own:
            report.wrong(f"{at}.internalIP", str(internal), "is not one of the endpoint's ipNetworks")
        if internal is not None and external is not None and internal.version != external.version:
            report.wrong(f"{at}.externalIP", str(external), "must be of the family of internalIP")


def _check_ports(report: Report, spec: Spec) -> None:
    for i, raw in enumerate(report.list("spec.ports", spec.get("ports"))):
        at = f"spec.ports[{i}]"
        port = report.object(at, raw)
        for field in ("name", "hostIP"):
            report.string(f"{at}.{field}", port.get(field))
        report.number(f"{at}.port", port.get("port", 0), 1, 65535)
        report.number(f"{at}.hostPort", port.get("hostPort"), 0, 65535)
