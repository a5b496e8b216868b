"""The definition of Kubernetes' ClusterNetworkPolicy, ``policy.networking.k8s.io/v1alpha2``, with all its peers.

Rule: names and limits are those of network-policy-api v0.2.0 in its channel experimental, which has peers that its
channel standard lacks. As in all our definitions fields that are not named here are kept: an agent that meets one
fails closed, which it could not do for a field that the API server has dropped.
"""

from __future__ import annotations

from manifests.schemas import ANY_OBJECT, Schema, fields, items, mapping, number, text

GROUP, VERSION, BUNDLE = "policy.networking.k8s.io", "v1alpha2", "v0.2.0"
_MOST = 25  # rules of a direction, peers of a rule, networks or names of a peer, protocols of a rule
_ONE = {"minProperties": 1, "maxProperties": 1}
_SOME = {"minItems": 1, "maxItems": _MOST}
_ATOMIC = {"x-kubernetes-map-type": "atomic"}
_NAME = r"^(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.)+[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\.?$"

_EXPRESSION = fields(
    ("key", "operator"),
    key=text(),
    operator={"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    values=items(text()),
)
SELECTOR: Schema = {**fields(matchLabels=mapping(text()), matchExpressions=items(_EXPRESSION)), **_ATOMIC}
PODS = fields(("namespaceSelector", "podSelector"), namespaceSelector=SELECTOR, podSelector=SELECTOR)
_OF_PODS = {"namespaces": SELECTOR, "pods": PODS}
_NET: Schema = text(
    longest=43, **{"x-kubernetes-validations": [{"rule": "isCIDR(self)", "message": "must be a network as 10.0.0.0/8"}]}
)
_SET = {"x-kubernetes-list-type": "set"}
_SOURCE: Schema = {**fields(**_OF_PODS), **_ONE}
_DESTINATION: Schema = {
    **fields(
        **_OF_PODS,
        nodes=SELECTOR,
        networks=items(_NET, **_SOME, **_SET),
        domainNames=items(text(longest=253, pattern=_NAME), **_SOME, **_SET),
    ),
    **_ONE,
}
_RANGE = fields(
    ("start", "end"),
    (("self.start < self.end", "start must be less than end"),),
    start=number(1, 65535),
    end=number(1, 65535),
)
_PORT: Schema = {**fields(number=number(1, 65535), range=_RANGE), **_ONE}
_PORTS = fields(destinationPort=_PORT)
_PROTOCOL: Schema = {**fields(tcp=_PORTS, udp=_PORTS, sctp=_PORTS, destinationNamedPort=text()), **_ONE}
_NO_NAMES = (
    "!(has(self.protocols) && self.protocols.exists(p, has(p.destinationNamedPort)) && self.to.exists(peer, "
    "has(peer.networks) || has(peer.nodes) || has(peer.domainNames)))",
    "networks, nodes and domainNames have no named ports: give numbers",
)
_NAMES_ACCEPT = (
    "self.action == 'Accept' || !self.to.exists(peer, has(peer.domainNames))",
    "domainNames are for rules that accept",
)


def _rule(peers: str, peer: Schema, rules: tuple[tuple[str, str], ...] = ()) -> Schema:
    return fields(
        ("action", peers),
        rules,
        name=text(longest=100),
        action={"type": "string", "enum": ["Accept", "Deny", "Pass"]},
        protocols=items(_PROTOCOL, **_SOME),
        **{peers: items(peer, **_SOME)},
    )


SPEC = fields(
    ("tier", "priority", "subject"),
    tier={"type": "string", "enum": ["Admin", "Baseline"]},
    priority=number(0, 1000),
    subject={**fields(**_OF_PODS), **_ONE},
    ingress=items(_rule("from", _SOURCE), maxItems=_MOST),
    egress=items(_rule("to", _DESTINATION, (_NO_NAMES, _NAMES_ACCEPT)), maxItems=_MOST),
)


def definition() -> Schema:
    """The CustomResourceDefinition. The API server takes this group only with a reference to the API's review."""
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": SPEC,
            "status": ANY_OBJECT,
        },
    }
    columns = [("Tier", "string", ".spec.tier"), ("Priority", "string", ".spec.priority")]
    columns.append(("Age", "date", ".metadata.creationTimestamp"))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"clusternetworkpolicies.{GROUP}",
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/network-policy-api/pull/300",
                f"{GROUP}/bundle-version": BUNDLE,
                f"{GROUP}/channel": "experimental",
            },
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": "ClusterNetworkPolicy",
                "listKind": "ClusterNetworkPolicyList",
                "plural": "clusternetworkpolicies",
                "singular": "clusternetworkpolicy",
                "shortNames": ["cnp"],
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns
                    ],
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
