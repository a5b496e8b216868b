"""What the records say of encryption between nodes, for whoever proves it on the wire.

Rule: nothing is tried where no Node has a key and nobody asked for encryption.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cni_calico.ctl.addresses import main_addresses
from cni_calico.ctl.encryption.between import is_told, why_plain
from cni_calico.ctl.encryption.keys import DEFAULT, SETTINGS, WantedEncryption, read_nodes, wanted_by
from cni_calico.ctl.session import Session
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node

_DEVICES = {"wireguardInterfaceName": "wireguard.cali", "wireguardInterfaceNameV6": "wg-v6.cali"}
_PREFIX = "cali"


@dataclass(frozen=True, slots=True)
class EncryptedCluster:
    """``families``: those that are encrypted, or are to be; ``devices``: WireGuard's interfaces, ``prefixes`` of pods'
    ones.
    """

    families: Collection[int]
    nodes: Mapping[str, Node]
    wanted: WantedEncryption
    devices: Collection[str]
    prefixes: Collection[str]

    def addresses(self, *names: str) -> list[str]:
        """On the network between nodes."""
        known = [self.nodes[name] for name in names if name in self.nodes]
        return sorted({str(address) for node in known for address in main_addresses(node)})

    def why_plain(self, ends: tuple[str, str], family: int) -> str:
        """Empty if it has to be encrypted."""
        missing = [name for name in ends if name not in self.nodes]
        if missing:
            return f"there is no Node {missing[0]}"
        return why_plain(self.nodes, ends, family)

    def exempt(self, ends: tuple[str, str]) -> str:
        """The one of both that is reached in plain text on purpose; "" if neither is."""
        return next((name for name in ends if name in self.wanted.exempt), "")


def read_encrypted(session: Session) -> EncryptedCluster | None:
    """None where encryption is off. Raises DatastoreError."""
    found = session.store.get(ResourceKey(SETTINGS, DEFAULT), session.deadline)
    document = {} if found is None else found.value
    wanted = wanted_by(document)
    nodes, _ = read_nodes(session)
    families = [family for family in (4, 6) if family in wanted.families or is_told(nodes, family)]
    if not families:
        return None
    spec = document.get("spec")
    fields = spec if isinstance(spec, Mapping) else {}
    devices = [str(fields.get(name) or default) for name, default in _DEVICES.items()]
    prefixes = str(fields.get("interfacePrefix") or _PREFIX).split(",")
    return EncryptedCluster(families, nodes, wanted, devices, [one for one in prefixes if one])
