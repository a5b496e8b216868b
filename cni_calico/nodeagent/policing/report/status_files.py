"""Files that say for which endpoints policy is in force: one for each endpoint of this node; the CNI plugin's ADD waits
for it.

Rule: a file exists exactly while the endpoint's rules are in force and its interface is up. At the start, files of
unknown endpoints are removed and others rewritten, but only after the first apply. Names and contents are upstream's. A
full disk is reported once and the write is tried again; nothing else waits for it. Files that another program removes
are written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from ipaddress import ip_address

from cni_calico.daemon.said import Said
from cni_calico.kernel.files import Files
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.plugin.waits import BGP_PEER, status_fields, status_file_name
from cni_calico.policy.wanted import WantedEndpoint

DIRECTORY = "endpoint-status"


def status_directory(prefix: str) -> str:
    """PURE: where the files are, "" for none."""
    return f"{prefix.rstrip('/')}/{DIRECTORY}" if prefix else ""


def render_status(endpoint: WantedEndpoint, bgp_peer: str = "") -> bytes:
    """``bgp_peer``: the BGPPeer for whose sessions this workload is a peer."""
    fields = status_fields(endpoint.interface, endpoint.mac, map(ip_address, endpoint.addresses))
    if bgp_peer:
        fields[BGP_PEER] = bgp_peer
    return json.dumps(fields, separators=(",", ":")).encode()


def _shown(endpoint: WantedEndpoint) -> tuple[object, ...]:
    name = endpoint.orchestrator, endpoint.workload, endpoint.endpoint
    return (*name, endpoint.interface, endpoint.mac, endpoint.addresses)


class StatusFiles:
    """The files in ``<prefix>/endpoint-status``; with an empty prefix none are written. For one thread.

    ``endpoints``: those of this node; ``up`` says whether the interface with a name is up. ``due``: a file may have to
    change.
    """

    def __init__(
        self,
        files: Files,
        log: Log,
        prefix: str,
        endpoints: Callable[[], Mapping[ResourceKey, WantedEndpoint]],
        up: Callable[[str], bool],
    ) -> None:
        self.due = True
        self._up = up
        self._files = files
        self._log, self._said = log, Said(log)
        self._endpoints = endpoints
        self._written: dict[str, bytes] = {}
        self._rendered: dict[ResourceKey, tuple[WantedEndpoint, str, bytes]] = {}
        self._begun = False
        self._directory = status_directory(prefix)
        self._peers: Mapping[str, str] = {}

    def notice(self, happened: Happened) -> None:
        """Note what the kernel reported."""
        self.due = self.due or happened.links is None or bool(happened.links)

    def use_peers(self, peers: Mapping[str, str]) -> None:
        """The workloads that BGP has sessions with: by the interface, the BGPPeer that asks for it."""
        if peers != self._peers:
            self._peers, self._rendered, self.due = dict(peers), {}, True

    def note(self, changed: Mapping[ResourceKey, WantedEndpoint | None]) -> None:
        """Note these changes; other policies for an endpoint change no file."""
        self.due = self.due or any(not self._stays(key, endpoint) for key, endpoint in changed.items())

    def keep(self) -> None:
        """Everything is in force, or nothing is to be: the files say so."""
        if self.due or self._were_removed():
            self.due = not self.update()

    def _stays(self, key: ResourceKey, endpoint: WantedEndpoint | None) -> bool:
        known = self._rendered.get(key)
        if known is None or endpoint is None:
            return known is None and (endpoint is None or not self._up(endpoint.interface))
        return _shown(known[0]) == _shown(endpoint)

    def update(self) -> bool:
        """Write and remove what has changed; returns whether everything succeeded."""
        if not self._directory:
            return True
        endpoints = self._endpoints()
        if not self._rendered.keys() <= endpoints.keys():
            self._rendered = {key: known for key, known in self._rendered.items() if key in endpoints}
        wanted = {}
        for key, endpoint in endpoints.items():
            if self._up(endpoint.interface):
                known = self._rendered.get(key)
                if known is None or known[0] is not endpoint:
                    name = status_file_name(endpoint.orchestrator, endpoint.workload, endpoint.endpoint)
                    status = render_status(endpoint, self._peers.get(endpoint.interface, ""))
                    known = self._rendered[key] = endpoint, name, status
                wanted[known[1]] = known[2]
        failed = self._carry_out(wanted)
        self._said.say("", [f"cannot write the status of endpoints: {failed}"] if failed else [], "error")
        return not failed

    def read_all(self) -> list[bytes]:
        """The contents that an earlier run left; those that cannot be read are left out."""
        found = []
        for name in self._files.names(self._directory) if self._directory else ():
            try:
                found.append(self._files.read_bytes(f"{self._directory}/{name}"))
            except OSError:
                continue
        return found

    def _were_removed(self) -> bool:
        """Whether another program removed files, or the directory: the next update writes everything again."""
        if not self._begun:
            return False
        try:
            there = set(self._files.names(self._directory))
        except OSError:
            return False  # the next update reports why
        if self._written.keys() <= there and (there or self._files.exists(self._directory)):
            return False
        self._log.warning(f"another program removed the status of endpoints from {self._directory}: writing it again")
        self._begun = False
        return True

    def _begin(self) -> None:
        """Learn what is there, so that unwanted files are removed and all others written again."""
        if self._begun:
            return
        self._files.make_directory(self._directory, 0o755)
        self._written = dict.fromkeys(self._files.names(self._directory), b"")
        self._begun = True

    def _carry_out(self, wanted: Mapping[str, bytes]) -> str:
        """Returns what failed; a file that cannot be written does not stop the others."""
        failed = ""
        try:
            self._begin()
        except OSError as e:
            return f"{self._directory}: {e.strerror}"
        for name in [name for name in self._written if name not in wanted]:
            try:
                self._files.remove(f"{self._directory}/{name}")
                del self._written[name]
            except OSError as e:
                failed = f"{self._directory}/{name}: {e.strerror}"
        for name, content in wanted.items():
            if self._written.get(name) != content:
                try:
                    self._files.write_atomic(f"{self._directory}/{name}", content, 0o644)
                    self._written[name] = content
                except OSError as e:
                    failed = f"{self._directory}/{name}: {e.strerror}"
        return failed

    def clear(self) -> None:
        """Nobody's policy is in force any more."""
        self.due = True
        if self._directory:
            self._carry_out({})
