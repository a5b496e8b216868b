"""PURE: fields of an Installation that cannot hold together, which the operator refuses as well.

Rule: only what both say is refused, in the Installation's own words; its defaults are the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cni_calico.model.documents.fields import JSON, Wrong

# whose network each provider can have besides Calico's
_NETWORKS = {"EKS": "AmazonVPC", "AKS": "AzureVNET", "GKE": "GKE"}
_ROUTED_BY_AGENT = ("Felix", "FelixIPIPOnly")


def find_contradictions(spec: JSON) -> Iterator[Wrong]:
    """``spec``: the Installation's fields, whose shapes need not be right."""
    provider, cni, network = spec.get("kubernetesProvider"), _part(spec, "cni"), _part(spec, "calicoNetwork")
    kind, bgp = cni.get("type") or "Calico", network.get("bgp")
    own = _NETWORKS.get(str(provider))
    if kind in _NETWORKS.values() and provider in _NETWORKS and kind != own:
        yield Wrong("cni.type", f"Calico or {own}, the network of {provider}", kind)
    if kind in ("AmazonVPC", "AzureVNET") and bgp == "Enabled":
        yield Wrong("calicoNetwork.bgp", f"Disabled: routes are those of {kind}", bgp)
    pools = network.get("ipPools")
    for i, pool in enumerate(pools if isinstance(pools, list) else ()):
        at = f"calicoNetwork.ipPools[{i}].encapsulation"
        if not isinstance(pool, Mapping):
            continue
        encapsulation = pool.get("encapsulation") or ("None" if ":" in str(pool.get("cidr")) else "IPIP")
        if _part(cni, "ipam").get("type") == "HostLocal":
            if str(encapsulation).startswith("VXLAN"):
                yield Wrong(
                    at, "no VXLAN, which needs Calico's own addresses: cni.ipam.type is HostLocal", encapsulation
                )
        elif bgp == "Disabled" and encapsulation in ("IPIP", "IPIPCrossSubnet", "None"):
            if network.get("clusterRoutingMode") not in _ROUTED_BY_AGENT:
                yield Wrong(at, "VXLAN or VXLANCrossSubnet, because calicoNetwork.bgp is Disabled", encapsulation)


def _part(tree: JSON, name: str) -> JSON:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}
