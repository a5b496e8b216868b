"""The proof on the wire in a Kubernetes cluster: on each of the two pods' hosts a pod looks at the wires.

Rule: both look before anything is sent. What cannot be looked at, as without the right to such pods, is "not tried".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.cluster.connectivity.encrypted import EncryptedCluster
from cni_calico.ctl.cluster.connectivity.findings import SKIPPED, Trial, family_of
from cni_calico.ctl.cluster.connectivity.inside import Progress
from cni_calico.ctl.cluster.connectivity.pod_namespace import CheckNamespace, PodPlace
from cni_calico.ctl.cluster.connectivity.sightings import Sighting, WirePlan, judge, render_wire_plan
from cni_calico.ctl.cluster.connectivity.wires import new_token
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError

_ROUNDS = 3  # looks that a host has begun after everything was sent
_PATIENCE_S = 20.0


class WirePods:
    """``addresses``: the answering pod's. ``tokens``: what the other one is to send to which of them."""

    def __init__(
        self,
        made: CheckNamespace,
        encrypted: EncryptedCluster,
        client: PodPlace,
        server: PodPlace,
        addresses: Collection[str],
    ) -> None:
        self.made = made
        self.encrypted = encrypted
        self.places = {objects.SERVER: server, objects.CLIENT: client}
        self.ends = (client.node, server.node)
        self.addresses = [text for text in addresses if ip_address(text).version in encrypted.families]
        self.tokens: dict[str, str] = {}
        self._of_host: dict[str, str] = {}  # tokens that the first host itself sends, by address

    def start(self) -> Iterator[Trial]:
        """What cannot be tried is yielded; then there are no tokens."""
        why = self._why_not()
        if not why:
            try:
                why = self._make()
            except CalicoError as e:
                why = e.message
        if why:
            self.tokens = {}
            yield Trial("encryption", SKIPPED, why)

    def _why_not(self) -> str:
        if len({*self.ends}) == 1:
            return f"both pods are on {self.ends[0]}"
        exempt = self.encrypted.exempt(self.ends)
        if exempt:
            return f"{exempt} is exempt, so reached in plain text"
        return "" if self.addresses else "pods get no address of a family that is encrypted"

    def _make(self) -> str:
        """Why it is not possible."""
        self.tokens = {address: new_token() for address in self.addresses}
        self._of_host = {address: new_token() for address in self.addresses}
        for role, place in self.places.items():
            plan = WirePlan(
                tokens=[*self._of_host.values(), *self.tokens.values()],
                pods=self.addresses,
                nodes=self.encrypted.addresses(*self.ends),
                devices=self.encrypted.devices,
                prefixes=self.encrypted.prefixes,
                reach=self.addresses if role == objects.CLIENT else (),
            )
            self.made.create_pod(objects.wire_pod(role, place.node, place.image, render_wire_plan(plan)))
            self.made.await_pod(f"wire-{role}", _has_begun)
            progress = self._until(role, 1)
            if progress.seen is None:
                why = progress.blind or (progress.others or ["it does not say why"])[-1]
                return f"the wires of {place.node} cannot be looked at: {why}"
        return ""

    def _until(self, role: str, rounds: int) -> Progress:
        """What a host has seen, when it has looked so often, or has ended."""
        end = Deadline.after(_PATIENCE_S)
        while True:
            progress = Progress(self.made.log(f"wire-{role}"))
            if (progress.seen is not None and progress.seen.round >= rounds) or progress.blind or end.expired():
                return progress
            if progress.seen is None and progress.others:
                return progress
            self.made.pause(f"follow the pod that looks at the wires of {self.places[role].node}")

    def judge(self, exchanged: Mapping[str, int]) -> Iterator[Trial]:
        """``exchanged``: packets there and back, by address. Raises DatastoreError."""
        if not self.tokens:
            return
        seen: dict[str, Sighting] = {}
        for role, place in self.places.items():
            before = Progress(self.made.log(f"wire-{role}")).seen
            found = self._until(role, _ROUNDS + (before.round if before is not None else 0)).seen
            if found is None:
                yield Trial("encryption", SKIPPED, f"the wires of {place.node} cannot be looked at any more")
                return
            seen[place.node] = found
        by_host = seen[self.ends[0]].sent
        where = " to ".join(self.ends)
        for address in self.addresses:
            family, name = ip_address(address).version, f"{family_of(address)} encryption"
            why = self.encrypted.why_plain(self.ends, family)
            sent = {self.tokens[address]: exchanged.get(address, 0), self._of_host[address]: by_host.get(address, 0)}
            both = sum(sent.values())
            for token, what in ((self.tokens[address], name), (self._of_host[address], f"{name} from a host")):
                # those that were seen encrypted are not told apart: both together have to be enough
                counted = {
                    node: (one, one.encrypted.get(str(family), 0) - both + sent[token]) for node, one in seen.items()
                }
                yield judge(what, where, token, sent[token], counted, why)


def _has_begun(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Running", "Succeeded", "Failed")
