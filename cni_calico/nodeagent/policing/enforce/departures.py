"""Removes the connections of workloads that are gone, including workloads that went while the agent was not running.

Rule: a file lists the policed addresses. An address is added to it before a policy of its workload is in force, and
removed only once its connections are removed or another workload has it. An address that only a pod's annotation names
is added once this node routes it to the pod's interface, or IPAM holds it for the pod. An address in the list of an
earlier run that no workload has now belonged to a workload that went in between. Connections of an address that is this
host's own now are the host's, and stay. An ADD reads the file: an address that is assigned again before it was taken
out has connections that the ADD removes (plugin/former_connections.py). The file is in the run directory and not
synced: connections do not outlive a reboot either. Where no such file has been written yet (an older version or
upstream's agent ran before), the endpoints' status files are read instead; with Kubernetes as the datastore they are
not, because other agents write annotations' addresses into them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_interface

from cni_calico.directories import POLICED_ADDRESSES
from cni_calico.kernel.files import Files
from cni_calico.kernel.interfaces import is_own_address
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.enforce.connections import Connections
from cni_calico.nodeagent.policing.enforce.owners import Owners
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.records import Labelled

FILE = POLICED_ADDRESSES
_UNKNOWN = frozenset[bytes]()


def parse_addresses(text: str) -> set[bytes]:
    """The addresses in the file's text, one on each line; lines that are not addresses are skipped."""
    found = set()
    for line in text.split():
        try:
            found.add(ip_address(line).packed)
        except ValueError:
            continue
    return found


def render_addresses(addresses: Iterable[bytes]) -> str:
    return "".join(map(_line, sorted(addresses)))


@lru_cache(maxsize=4096)  # the list is written whenever an endpoint comes or goes
def _line(address: bytes) -> str:
    return f"{ip_address(address)}\n"


def addresses_in_status(content: bytes) -> set[bytes]:
    """The addresses in an endpoint's status file; none if ``content`` is not a status file's."""
    try:
        fields = json.loads(content)
        nets = [*(fields.get("ipv4Nets") or ()), *(fields.get("ipv6Nets") or ())]
        return {ip_interface(net).ip.packed for net in nets}
    except (ValueError, TypeError, AttributeError):
        return set()


class Departures:
    """For the engine's thread. ``netlink`` None: connections are left alone. ``trouble``: why their connections may
    still pass.
    """

    def __init__(self, node: str, netlink: Nfnetlink | None, files: Files, log: Log, run_dir: str) -> None:
        self.owners = Owners(node)
        self._connections = None if netlink is None else Connections(netlink, self._may_go, log)
        self._files = files
        self._log = log
        self._directory, self._path = run_dir, f"{run_dir}/{FILE}"
        self._listed: set[bytes] | None = None  # the addresses in the file; None: not known
        self._version = -1  # of the owners, when the file was last compared
        self._owed = _UNKNOWN
        self._unwritten = ""

    @property
    def trouble(self) -> str:
        said = [] if self._connections is None else [self._connections.trouble]
        return "; ".join(filter(None, [*said, self._unwritten]))

    def put(self, key: ResourceKey, endpoint: WorkloadEndpoint | ClaimedEndpoint | Labelled | None) -> None:
        self.owners.put(key, endpoint)

    def begin(self, statuses: Iterable[bytes]) -> None:
        """Learn which addresses an earlier run policed. ``statuses``: the contents of the status files that it left."""
        try:
            self._listed = parse_addresses(self._files.read_bytes(self._path).decode("ascii", "replace"))
        except FileNotFoundError:
            self._listed = set()
        except OSError as e:
            self._log.warning(
                f"cannot read {self._path}: {e.strerror}: connections of workloads that are gone may still pass"
            )
            self._listed = set()
        for content in statuses:
            self._listed |= addresses_in_status(content)
        self.owners.let_go(self._listed)

    def before_change(self) -> None:
        """Call it before policies are put into force: list the addresses that become policed."""
        if self._listed is not None and self._version != self.owners.local_version:
            self._write(self._listed | self.owners.local_addresses())

    def after_change(self) -> bool:
        """The kernel no longer has rules for the workloads that are gone: remove their connections, because established
        ones would pass forever. Returns whether there are any to remove.
        """
        gone = self.owners.take_let_go()
        if self._connections is not None:
            self._connections.remove(address for address in gone if not is_own_address(address))
        owed = _UNKNOWN if self._connections is None else self._connections.owed
        if (self._version, self._owed) != (self.owners.local_version, owed):
            self._version, self._owed = self.owners.local_version, owed
            self._write(self.owners.local_addresses() | owed)
        return bool(gone or owed)

    def _may_go(self, address: bytes) -> bool:
        return self.owners.is_free(address) and not is_own_address(address)

    def forget(self) -> None:
        """Empty the list: no workload is policed any more."""
        self.owners.take_let_go()
        self._version = -1
        self._write(set())

    def stop(self) -> None:
        """Stop the thread; what it has not done yet stays in the list."""
        if self._connections is not None:
            self._connections.stop()

    def _write(self, addresses: set[bytes]) -> None:
        if addresses == self._listed:
            return
        try:
            self._files.make_directory(self._directory, 0o755)
            self._files.write_atomic(self._path, render_addresses(addresses).encode(), 0o600, durable=False)
        except OSError as e:
            if not self._unwritten:
                self._log.warning(f"cannot write {self._path}: {e.strerror}; trying again")
            self._unwritten = (
                f"{self._path}: {e.strerror}: after a restart the agent will not know which workloads went meanwhile"
            )
            self._version = -1
        else:
            self._listed, self._unwritten = addresses, ""
