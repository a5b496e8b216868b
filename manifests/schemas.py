"""The schemas of Calico's custom resources, as values; kinds.py has the kinds that they belong to.

Rule: the API server itself refuses what would break IPAM or routing: wrong addresses, block sizes and enumerations, and
changes of fixed fields. Fields that a schema does not name are kept, because newer releases of Calico add fields.
"""

from __future__ import annotations

from typing import Any

from manifests import rules

Schema = dict[str, Any]

OPEN = {"x-kubernetes-preserve-unknown-fields": True}
NAME_LENGTH = 256


def text(*, longest: int = 0, **more: Any) -> Schema:
    return {"type": "string", **({"maxLength": longest} if longest else {}), **more}


def choice(*values: str) -> Schema:
    """One of the values; "" stands for the default, as everywhere in Calico."""
    return {"type": "string", "enum": ["", *values]}


def flag() -> Schema:
    return {"type": "boolean"}


def number(low: int, high: int) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": low, "maximum": high}


def cidr() -> Schema:
    return text(longest=64, format="cidr")


def address() -> Schema:
    return text(longest=64, anyOf=[{"format": "ipv4"}, {"format": "ipv6"}])


def network() -> Schema:
    """An address or a network."""
    return text(longest=64, anyOf=[{"format": "cidr"}, {"format": "ipv4"}, {"format": "ipv6"}])


def items(of: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": of, **more}


def mapping(of: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": of, **more}


def fields(required: tuple[str, ...] = (), rules: tuple[tuple[str, str], ...] = (), **properties: Schema) -> Schema:
    """An object that may have more fields than these; ``rules`` are CEL expressions and their error messages."""
    schema: Schema = {"type": "object", **OPEN, "properties": properties}
    if required:
        schema["required"] = list(required)
    if rules:
        schema["x-kubernetes-validations"] = validations(rules)
    return schema


def validations(rules: tuple[tuple[str, str], ...]) -> list[Schema]:
    return [{"rule": rule, "message": message} for rule, message in rules]


def fixed(schema: Schema) -> Schema:
    """A field that keeps its first value."""
    rule = {"rule": "self == oldSelf", "message": "cannot be changed"}
    return {**schema, "x-kubernetes-validations": [rule]}


def nullable(schema: Schema) -> Schema:
    return {**schema, "nullable": True}


AS_NUMBER = number(0, 4294967295)
PORT = number(0, 65535)
INTEGER = {"type": "integer", "format": "int64"}
NUMBER_OR_TEXT: Schema = {"x-kubernetes-int-or-string": True}
ANY_OBJECT: Schema = {"type": "object", **OPEN}
TEXTS = items(text())
ORDER = nullable({"type": "number"})

# -- address management -----------------------------------------------------------------------------------------------

_PREFIX = "int(self.cidr.split('/')[1])"
_BLOCK_RANGE = (
    "!has(self.blockSize) || self.blockSize == 0 || "
    "(self.cidr.contains(':') ? (self.blockSize >= 116 && self.blockSize <= 128)"
    " : (self.blockSize >= 20 && self.blockSize <= 32))"
)
_DEFAULT_SIZE = "(self.cidr.contains(':') ? 122 : 26)"
# a pool without one gives blocks of the default size, so it may only be given that; or any, if no such block fits
POOL = fields(
    ("cidr",),
    (
        (_BLOCK_RANGE, "blockSize must be from 20 to 32 for IPv4, from 116 to 128 for IPv6"),
        (
            f"!has(self.blockSize) || self.blockSize == 0 || self.blockSize >= {_PREFIX}",
            "blockSize must not be shorter than the prefix of cidr: no block would fit into the pool",
        ),
        (
            "has(oldSelf.blockSize) && oldSelf.blockSize != 0"
            " ? has(self.blockSize) && self.blockSize == oldSelf.blockSize"
            " : !has(self.blockSize) || self.blockSize == 0 || "
            f"self.blockSize == {_DEFAULT_SIZE} || {_PREFIX} > {_DEFAULT_SIZE}",
            "blockSize cannot be changed: create another pool",
        ),
        (
            "!(has(self.ipipMode) && has(self.vxlanMode) && self.ipipMode in ['Always', 'CrossSubnet']"
            " && self.vxlanMode in ['Always', 'CrossSubnet'])",
            "ipipMode and vxlanMode cannot both be used",
        ),
        (
            "!(self.cidr.contains(':') && has(self.ipipMode) && self.ipipMode in ['Always', 'CrossSubnet'])",
            "ipipMode is for IPv4 only",
        ),
        *rules.POOL,
    ),
    cidr=fixed(cidr()),
    blockSize=number(0, 128),
    ipipMode=choice("Always", "CrossSubnet", "Never"),
    vxlanMode=choice("Always", "CrossSubnet", "Never"),
    natOutgoing=flag(),
    disabled=flag(),
    disableBGPExport=flag(),
    nodeSelector=text(),
    namespaceSelector=text(),
    allowedUses=items({"type": "string", "enum": ["Workload", "Tunnel", "LoadBalancer"]}),
    assignmentMode=choice("Automatic", "Manual"),
)
RESERVATION = fields(reservedCIDRs=items(network()))
ATTRIBUTE = fields(handle_id=nullable(text()), secondary=nullable(mapping(text())))
BLOCK = fields(
    ("allocations", "attributes", "cidr", "unallocated"),
    (("self.unallocated.size() <= self.allocations.size()", "more free ordinals than addresses"),),
    cidr=fixed(cidr()),
    affinity=nullable(text(longest=512)),
    affinityClaimTime=nullable(text(format="date-time")),
    # atomic: managed fields would otherwise hold an entry per address
    allocations=items(nullable(number(0, 65535)), maxItems=65536, **{"x-kubernetes-list-type": "atomic"}),
    unallocated=items(number(0, 65535), maxItems=65536, **{"x-kubernetes-list-type": "atomic"}),
    attributes=items(ATTRIBUTE, **{"x-kubernetes-list-type": "atomic"}),
    sequenceNumber=INTEGER,
    sequenceNumberForAllocation=mapping(INTEGER, **{"x-kubernetes-map-type": "atomic"}),
    strictAffinity=flag(),
    deleted=flag(),
)
AFFINITY = fields(
    ("cidr", "deleted", "node", "state"),
    cidr=fixed(cidr()),
    node=fixed(text(longest=NAME_LENGTH)),
    state=choice("pending", "confirmed", "pendingDeletion"),
    type=choice("host", "virtual"),
    deleted=choice("true", "false"),
)
HANDLE = fields(
    ("block", "handleID"),
    handleID=fixed(text(longest=1024)),
    block=mapping(number(0, 1 << 32), **{"x-kubernetes-map-type": "atomic"}),
    deleted=flag(),
)
IPAM_CONFIG = fields(
    strictAffinity=flag(),
    autoAllocateBlocks=flag(),
    maxBlocksPerHost=number(0, 2147483647),
)
# in the group projectcalico.org
NATIVE_BLOCK = {
    **BLOCK,
    "required": ["allocations", "attributes", "cidr", "strictAffinity", "unallocated"],
    "properties": {
        **BLOCK["properties"],
        "affinity": nullable(text(longest=512, pattern=r"^(host|virtual):[a-zA-Z0-9.\-_]+$")),
    },
}
NATIVE_AFFINITY = {**AFFINITY, "properties": {**AFFINITY["properties"], "deleted": flag()}}
NATIVE_IPAM_CONFIG = {
    **IPAM_CONFIG,
    "required": ["autoAllocateBlocks", "strictAffinity"],
    "properties": {**IPAM_CONFIG["properties"], "maxBlocksPerHost": number(0, 1000000)},
}
CLUSTER = fields(clusterGUID=text(), clusterType=text(), calicoVersion=text(), datastoreReady=flag(), variant=text())

# -- BGP --------------------------------------------------------------------------------------------------------------

COMMUNITY = text(pattern=r"^(\d+):(\d+)$|^(\d+):(\d+):(\d+)$|^[A-Za-z0-9_.-]+$")
SERVICE_NETWORKS = items(fields(("cidr",), cidr=network()))
BGP_CONFIGURATION = fields(
    (),
    rules.BGP_CONFIGURATION,
    asNumber=AS_NUMBER,
    nodeToNodeMeshEnabled=flag(),
    listenPort=PORT,
    logSeverityScreen=text(pattern=r"^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"),
    bindMode=choice("None", "NodeIP"),
    serviceClusterIPs=SERVICE_NETWORKS,
    serviceExternalIPs=SERVICE_NETWORKS,
    serviceLoadBalancerIPs=SERVICE_NETWORKS,
    serviceLoadBalancerAggregation=choice("Enabled", "Disabled"),
    communities=items(fields(("name", "value"), name=text(), value=COMMUNITY)),
    prefixAdvertisements=items(fields(cidr=cidr(), communities=items(COMMUNITY))),
    ignoredInterfaces=TEXTS,
    ipv4NormalRoutePriority=number(1, 2147483646),
    ipv6NormalRoutePriority=number(1, 2147483646),
    nodeMeshMaxRestartTime=text(),
    nodeMeshPassword=ANY_OBJECT,
)
BGP_PEER = fields(
    (),
    rules.BGP_PEER,
    node=text(longest=NAME_LENGTH),
    nodeSelector=text(longest=16384),
    peerIP=text(longest=128),
    peerSelector=text(longest=16384),
    localWorkloadSelector=text(longest=16384),
    asNumber=AS_NUMBER,
    localASNumber=AS_NUMBER,
    sourceAddress=choice("UseNodeIP", "None"),
    maxRestartTime=text(),
    keepOriginalNextHop=flag(),
    numAllowedLocalASNumbers=number(0, 2147483647),
    ttlSecurity=number(0, 255),
    filters=TEXTS,
    password=ANY_OBJECT,
    reachableBy=text(),
)


def _filter_rules(longest: int) -> Schema:
    return items(
        fields(
            ("action",),
            rules.FILTER_RULE,
            action={"type": "string", "enum": ["Accept", "Reject"]},
            cidr=cidr(),
            matchOperator={"type": "string", "enum": ["Equal", "NotEqual", "In", "NotIn"]},
            source={"type": "string", "enum": ["RemotePeers"]},
            interface=text(),
            operations=items(ANY_OBJECT),
            prefixLength=fields(min=nullable(number(0, longest)), max=nullable(number(0, longest))),
        ),
        maxItems=1000,
    )


BGP_FILTER = fields(
    importV4=_filter_rules(32), exportV4=_filter_rules(32), importV6=_filter_rules(128), exportV6=_filter_rules(128)
)
NODE_STATUS = fields(
    node=text(),
    classes=items({"type": "string", "enum": ["Agent", "BGP", "Routes"]}),
    updatePeriodSeconds=number(0, 2147483647),
)

# -- policy and the rest ----------------------------------------------------------------------------------------------

_ICMP = fields((), rules.ICMP, type=number(0, 255), code=number(0, 255))
_PEER = fields((), rules.PEER, services=ANY_OBJECT, ports=items(NUMBER_OR_TEXT), notPorts=items(NUMBER_OR_TEXT))
RULES = items(
    fields(
        ("action",),
        rules.RULE,
        action={"type": "string", "enum": ["Allow", "Deny", "Log", "Pass"]},
        protocol=NUMBER_OR_TEXT,
        http=ANY_OBJECT,
        icmp=_ICMP,
        notICMP=_ICMP,
        source=_PEER,
        destination=_PEER,
    ),
    maxItems=65536,  # no object has room for more, and the API server wants to know what checking may cost
)
_POLICY: Schema = {
    "tier": text(),
    "order": ORDER,
    "selector": text(),
    "types": items({"type": "string", "enum": ["Ingress", "Egress"]}),
    "ingress": RULES,
    "egress": RULES,
}
POLICY = fields(**_POLICY)
GLOBAL_POLICY = fields((), rules.GLOBAL_POLICY, **_POLICY, doNotTrack=flag(), preDNAT=flag(), applyOnForward=flag())
STAGED_POLICY = fields(stagedAction=choice("Set", "Delete", "Learn", "Ignore"), **POLICY["properties"])
STAGED_KUBERNETES_POLICY = fields(
    stagedAction=choice("Set", "Delete", "Learn", "Ignore"),
    podSelector=ANY_OBJECT,
    ingress=items(ANY_OBJECT),
    egress=items(ANY_OBJECT),
    policyTypes=items({"type": "string", "enum": ["Ingress", "Egress"]}),
)
NETWORK_SET = fields(nets=items(network()))
HOST_ENDPOINT = fields(
    (),
    rules.HOST_ENDPOINT,
    node=text(),
    interfaceName=text(),
    expectedIPs=items(address()),
    profiles=TEXTS,
    ports=items(fields(("name", "port", "protocol"), name=text(), port=PORT, protocol={**OPEN})),
)
TIER = fields(order=ORDER, defaultAction=choice("Pass", "Deny"))
FELIX = fields(
    (),
    rules.FELIX,
    nodeSelector=text(),
    routeTableRange=ANY_OBJECT,
    routeTableRanges=items(ANY_OBJECT),
    logSeverityScreen=text(pattern=r"^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"),
    ipipEnabled=nullable(flag()),
    vxlanEnabled=nullable(flag()),
    vxlanPort=PORT,
    vxlanVNI=number(0, 16777215),
    ipipMTU=number(0, 65535),
    vxlanMTU=number(0, 65535),
    floatingIPs=choice("Enabled", "Disabled"),
    nftablesMode=choice("Auto", "Enabled", "Disabled"),
    interfacePrefix=text(),
    healthPort=PORT,
    prometheusMetricsPort=PORT,
)
# the janitor reads its grace period here; it would treat an unreadable value as not set
KUBE_CONTROLLERS = fields(
    healthChecks=choice("Enabled", "Disabled"),
    controllers=fields(
        node=nullable(
            fields(
                leakGracePeriod=nullable(text(longest=64, pattern=r"^(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+)?$"))
            )
        ),
        loadBalancer=nullable(fields(assignIPs=choice("AllServices", "RequestedServicesOnly"))),
        policyMigration=nullable(fields(enabled=choice("Enabled", "Disabled"))),
    ),
)
