"""PURE: the names that Calico gives to interfaces, handles, endpoints and stored objects.

Rule: text in, text out; nothing here looks at the system. Source: upstream's stored data.
"""

from __future__ import annotations

from _sha1 import sha1  # hashlib would load libcrypto: milliseconds and megabytes in every call
from collections.abc import Collection

HOST_MAC = "ee:ee:ee:ee:ee:ee"
HOST_MAC_BYTES = b"\xee" * 6
HOST_LINK_LOCAL = "fe80::ecee:eeff:feee:eeee"
GATEWAY_V4 = "169.254.1.1"
DEFAULT_PREFIX = "cali"
ALIAS_PREFIX, SIGNED_PREFIX = "cni-calico:", "cni-calico/2:"  # of aliases without and with the workload's name
ALIAS_MAX = 255  # IFALIASZ less the terminating zero, in bytes
IFNAME_MAX = 15  # IFNAMSIZ less the terminating zero
NETWORK_NAME_MAX = 250
STICKY, IDENTITY = "cni-calico.io/sticky", "cni-calico.io/identity"  # annotations for addresses that outlast a pod
CHECK_PREFIX = "calico-check-"  # of what ``calicoctl cluster check`` makes, and removes
SHORT_ID = 12
_LOGGED_DIGITS, _LOGGED_MAX = 13, 40
_ID_LENGTH, _HEX = 64, frozenset("0123456789abcdef")


def sha1_hex(text: str) -> str:
    """SHA-1 in hex, from which Calico derives names."""
    digest: str = sha1(text.encode()).hexdigest()
    return digest


def kubernetes_veth(namespace: str, pod: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Host interface of a pod: prefix + first 11 hex digits of SHA-1("<namespace>.<pod>")."""
    return (prefix + sha1_hex(f"{namespace}.{pod}")[:11])[:IFNAME_MAX]


def runtimes_id(container_id: str) -> str:
    """The ID that podman, nerdctl or Docker made; "" if none of them did. A call of nerdctl names the container
    "<namespace of containerd>-<ID>".
    """
    own = container_id[-_ID_LENGTH:]
    is_one = len(own) == _ID_LENGTH and _HEX.issuperset(own)
    return own if is_one and container_id[-_ID_LENGTH - 1 : -_ID_LENGTH] in ("", "-") else ""


def short_id(container_id: str) -> str:
    """As runtimes show it: the first twelve digits."""
    return (runtimes_id(container_id) or container_id)[:SHORT_ID]


def logged_id(container_id: str) -> str:
    """As a line of the log has it: thirteen digits of a runtime's ID, as crictl shows it; others whole, if not long."""
    own = runtimes_id(container_id)
    return own[:_LOGGED_DIGITS] if own else container_id[:_LOGGED_MAX]


def container_veth(container_id: str) -> str:
    """Host interface outside Kubernetes: "cali" + first 11 characters of the container ID."""
    return (DEFAULT_PREFIX + container_id[:11])[:IFNAME_MAX]


def hashed_veth(container_id: str, ifname: str) -> str:
    """Host interface if container_veth() is taken by another endpoint (our scheme, not upstream's)."""
    return DEFAULT_PREFIX + sha1_hex(f"{container_id}.{ifname}")[:11]


# -- aliases of host interfaces ---------------------------------------------------------------------------------------


def attachment_digest(network: str, container_id: str, ifname: str) -> str:
    """What an alias has of the attachment; ``network`` "": unknown."""
    return sha1_hex(f"{network}/{container_id}/{ifname}")


def owner_text(orchestrator: str, namespace: str, workload: str) -> str:
    """What an alias has of the workload: "k8s/<namespace>/<pod>". For names that do not fit into an alias or are no
    plain text: "k8s/~<SHA-256 of "<namespace>/<pod>">/<as much of that as fits>". No namespace begins with "~".
    """
    full = f"{namespace}/{workload}"
    text = f"{orchestrator}/{full}"
    room = ALIAS_MAX - len(SIGNED_PREFIX) - 40 - 1
    if len(text) <= room and text.isascii() and text.isprintable() and not namespace.startswith("~"):
        return text
    from hashlib import sha256  # rarely needed: most names fit

    digest = sha256(full.encode("utf-8", "surrogatepass")).hexdigest()
    readable = "".join(c if c.isascii() and c.isprintable() else "?" for c in full)
    return f"{orchestrator}/~{digest}/{readable}"[:room]


def signed_alias(digest: str, owner: str) -> str:
    """The alias of an attachment's host interface, which proves that the interface is the attachment's, and whose its
    policies are. ``owner``: owner_text().
    """
    return f"{SIGNED_PREFIX}{digest}/{owner}"


def digest_in(alias: str) -> str:
    """The attachment's digest; "" if the alias is not one of ours. Older versions wrote nothing else."""
    for prefix in (ALIAS_PREFIX, SIGNED_PREFIX):
        if alias.startswith(prefix):
            return alias[len(prefix) :].partition("/")[0]
    return ""


def owner_in(alias: str) -> str:
    """The owner_text() in an alias; "" if it has none."""
    return alias.partition("/2:")[2].partition("/")[2] if alias.startswith(SIGNED_PREFIX) else ""


def shown_owner(owner: str) -> str:
    """An owner_text() for people: "<namespace>/<pod>"."""
    rest = owner.partition("/")[2]
    return f"{rest.partition('/')[2]}..." if rest.startswith("~") else rest


def select_owner(alias: str, owners: Collection[str]) -> str:
    """Which of those that name an interface as theirs (owner_text()) has it: the one that its alias names; without
    such an alias the only one; "": none of them.
    """
    named = owner_in(alias)
    if named:
        return named if named in owners else ""
    return next(iter(owners)) if len(set(owners)) == 1 else ""


# -- other names ------------------------------------------------------------------------------------------------------


def handle_id(network: str, container_id: str) -> str:
    """The IPAM handle of an attachment: "<network>.<container ID>"."""
    return f"{network}.{container_id}"


def escape(part: str) -> str:
    """Escape a part of an endpoint's name; the parts are joined by single dashes."""
    return part.replace("-", "--")


def endpoint_name(node: str, orchestrator: str, workload: str, ifname: str) -> str:
    """WorkloadEndpoint name: parts joined by "-", every "-" inside a part doubled.

    ``orchestrator`` is "k8s" (workload = pod name) or "cni" (workload = container ID). Raises ValueError for a part
    that is empty or begins or ends with "-", which could not be told apart when reading the name back.
    """
    for part in (node, orchestrator, workload, ifname):
        if not part or part.startswith("-") or part.endswith("-"):
            raise ValueError(f"{part!r} cannot be part of a WorkloadEndpoint name: empty, or begins or ends with '-'")
    return "-".join((escape(node), orchestrator, escape(workload), escape(ifname)))


def parse_endpoint_name(name: str) -> tuple[str, str, str, str]:
    """(node, orchestrator, workload, ifname) of a WorkloadEndpoint name. Raises ValueError if it is not one."""
    parts, current, i = [], "", 0
    while i < len(name):
        if name[i] == "-":
            if name[i + 1 : i + 2] == "-":
                current, i = current + "-", i + 2
                continue
            parts.append(current)
            current = ""
        else:
            current += name[i]
        i += 1
    parts.append(current)
    if len(parts) != 4 or not all(parts):
        raise ValueError(f"{name!r} is not a WorkloadEndpoint name (<node>-<k8s|cni>-<workload>-<interface>)")
    return parts[0], parts[1], parts[2], parts[3]


def valid_ifname(name: str) -> bool:
    """Linux's rule for interface names (dev_valid_name): 1-15 bytes, no "/", ":", white space; not "." or ".."."""
    raw = name.encode("utf-8", "surrogatepass")  # bytes that are no text are not printable either
    return (
        0 < len(raw) <= IFNAME_MAX
        and name not in (".", "..")
        and (name.isalnum() or not any(c in "/:" or c.isspace() or not c.isprintable() for c in name))
    )


def valid_policed_ifname(name: str) -> bool:
    """The same, without the names that nft would list as a pattern."""
    return valid_ifname(name) and name.isascii() and not set(name) & set('"*\\')


_HOST_IFNAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def valid_host_ifname(name: str) -> bool:
    """Upstream's rule for the interfaces of a host that have policies: none that iptables takes for several."""
    return valid_ifname(name) and not set(name) - _HOST_IFNAME


_ID_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ID_REST = _ID_START | frozenset("_.-")


def valid_identifier(name: str) -> bool:
    """The CNI specification's rule for container IDs and network names: [a-zA-Z0-9][a-zA-Z0-9_.-]*."""
    return bool(name) and name[0] in _ID_START and all(c in _ID_REST for c in name)


_OBJECT_END = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_OBJECT = _OBJECT_END | {"-"}


def valid_object_name(name: str) -> bool:
    """Kubernetes' rule for the names of custom resources: an RFC 1123 subdomain of at most 253 characters."""
    labels = name.split(".")
    return len(name) <= 253 and all(
        label and label[0] in _OBJECT_END and label[-1] in _OBJECT_END and set(label) <= _OBJECT for label in labels
    )
