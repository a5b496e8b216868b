"""What policy sync has told of this workload, and what it says of a request.

Rule: the order is the packet filter's: tiers, a tier's policies, a policy's rules, then profiles; whatever is missing
or cannot be read allows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cni_calico.alp.address_sets import SyncedSet
from cni_calico.alp.asked import ALLOWED, DENIED, UNAVAILABLE, AskedRequest
from cni_calico.alp.requests import InvalidRule, KnownWorld, RequestRule, read_rule
from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from google.protobuf.message import DecodeError

    from cni_calico.nodeagent.sync import felix_pb2 as pb

_PASS, _LOG = "next-tier", "log"
RulesName = tuple[str, str, str]  # kind, namespace, name; of a profile ("", "", name)


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """``code``: ALLOWED, DENIED or UNAVAILABLE; ``by``: what decided, for a log."""

    code: int
    by: str


class SyncedPolicies:
    """``in_sync``: everything has been told once."""

    def __init__(self) -> None:
        self.in_sync = False
        self._world = KnownWorld({}, {}, {})
        self._rules: dict[RulesName, tuple[RequestRule, ...] | None] = {}  # None: it cannot be read
        self._endpoint: Any = None
        self._takers: dict[str, Callable[[Any], object]] = {
            "in_sync": self._take_in_sync,
            "ipset_update": self._take_set,
            "ipset_delta_update": self._take_set_change,
            "ipset_remove": lambda gone: self._world.sets.pop(gone.id, None),
            "active_policy_update": lambda one: self._take_rules(_policy_name(one.id), one.policy, one.id.namespace),
            "active_policy_remove": lambda one: self._rules.pop(_policy_name(one.id), None),
            "active_profile_update": lambda one: self._take_rules(_profile_name(one.id), one.profile, ""),
            "active_profile_remove": lambda one: self._rules.pop(_profile_name(one.id), None),
            "workload_endpoint_update": self._take_endpoint,
            "workload_endpoint_remove": lambda _: self._take_no_endpoint(),
            "namespace_update": lambda one: self._world.namespaces.__setitem__(one.id.name, dict(one.labels)),
            "namespace_remove": lambda one: self._world.namespaces.pop(one.id.name, None),
            "service_account_update": self._take_account,
            "service_account_remove": lambda one: self._world.accounts.pop((one.id.namespace, one.id.name), None),
        }

    # -- what is told -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """A message ToDataplane; those about other things are ignored. Raises ValueError: begin again."""
        try:
            message = pb.ToDataplane.FromString(data)
        except DecodeError as e:
            raise ValueError(f"it is no message of policy sync: {e}") from e
        kind = message.WhichOneof("payload")
        taker = self._takers.get(kind or "")
        if taker is not None:
            taker(getattr(message, kind))

    def _take_in_sync(self, _: Any) -> None:
        self.in_sync = True

    def _take_set(self, update: Any) -> None:
        self._change(update.id, SyncedSet(has_ports=update.type == pb.IPSetUpdate.IP_AND_PORT), (), update.members)

    def _take_set_change(self, update: Any) -> None:
        found = self._world.sets.get(update.id)
        if found is None:
            raise ValueError(f"the set {update.id!r} changes without having been told")
        self._change(update.id, found, update.removed_members, update.added_members)

    def _change(self, name: str, found: SyncedSet, removed: Iterable[str], added: Iterable[str]) -> None:
        """A set whose change cannot be read is none. Raises ValueError."""
        try:
            found.change(removed, added)
        except ValueError:
            self._world.sets.pop(name, None)
            raise
        self._world.sets[name] = found

    def _take_rules(self, name: RulesName, policy: Any, namespace: str) -> None:
        try:
            self._rules[name] = tuple(read_rule(rule, namespace) for rule in policy.inbound_rules)
        except InvalidRule:
            self._rules[name] = None

    def _take_endpoint(self, update: Any) -> None:
        self._endpoint = update.endpoint

    def _take_no_endpoint(self) -> None:
        self._endpoint = None

    def _take_account(self, update: Any) -> None:
        self._world.accounts[update.id.namespace, update.id.name] = dict(update.labels)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def judge(self, asked: AskedRequest) -> RequestAnswer:
        """Whether the request may come in."""
        endpoint = self._endpoint
        if endpoint is None or not self.in_sync:
            return RequestAnswer(UNAVAILABLE, "nothing is known of this workload yet")
        for tier in endpoint.tiers:
            if not tier.ingress_policies:
                continue
            found = self._first_of(asked, map(_policy_name, tier.ingress_policies))
            if found is None and tier.default_action != "Pass":
                return RequestAnswer(DENIED, f"the end of tier {tier.name}")
            if isinstance(found, RequestAnswer):
                return found
        for name in endpoint.profile_ids:
            found = self._first_of(asked, (("", "", name),))
            if isinstance(found, RequestAnswer):
                return found
        return RequestAnswer(DENIED, "no policy and no profile allows it")

    def _first_of(self, asked: AskedRequest, names: Iterable[RulesName]) -> RequestAnswer | str | None:
        """An answer, ``_PASS``, or None if no rule fits."""
        for name in names:
            shown = "/".join(part for part in name if part)
            rules = self._rules.get(name, ())
            if rules is None:
                return RequestAnswer(DENIED, f"{shown}, which cannot be read")
            for place, rule in enumerate(rules):
                fits = rule.fits(asked, self._world)
                if fits is False or rule.action == _LOG:
                    continue
                by = f"rule {place} of {shown}"
                if fits is None and rule.action == "allow":
                    continue
                if fits is None:
                    return RequestAnswer(DENIED, f"{by}, of which nobody can say whether it fits")
                if rule.action == _PASS:
                    return _PASS
                return RequestAnswer(ALLOWED if rule.action == "allow" else DENIED, by)
        return None


def _policy_name(policy: Any) -> RulesName:
    return policy.kind, policy.namespace, policy.name


def _profile_name(profile: Any) -> RulesName:
    return "", "", profile.name
