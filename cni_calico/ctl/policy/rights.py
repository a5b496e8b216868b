"""``calicoctl policy rights``: what a user of Kubernetes may do with the policies of each tier.

Rule: the API server is asked (SubjectAccessReview), as Calico's API server and webhook ask it: a user may do something
with a tier's policies if he may get the tier and do it with ``tier.<resource>`` named ``<tier>.*``. Whether anybody
checks these rights in this cluster is said, too: with custom resources Calico's API server does, in
``projectcalico.org/v3`` a webhook does, for writes alone, beside the rights on the resources themselves.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cni_calico.ctl.ipam.lost import group_of, is_kubernetes, kubernetes_store
from cni_calico.ctl.output.values import TABLE, render_value, require_value_format
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.model.access import NATIVE_GROUP
from cni_calico.model.keys import ResourceKey, ResourceList

GROUP = "projectcalico.org"
RESOURCES = ("networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies", "stagedglobalnetworkpolicies")
READS, WRITES = ("get", "list", "watch"), ("create", "update", "delete")
WEBHOOK = "tiered-rbac.projectcalico.org"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v3.projectcalico.org"


@dataclass(frozen=True, slots=True)
class TierRights:
    """``may``: resource -> verbs."""

    tier: str
    may: dict[str, list[str]] = field(default_factory=dict)


class AccessQuestions:
    """What one user may do; each question is asked once."""

    def __init__(self, session: Session, user: str, groups: Sequence[str]) -> None:
        self._session, self._api = session, kubernetes_store(session).api
        self._user, self._groups = user, list(groups)
        self._known: dict[tuple[str, str, str], bool] = {}

    def may(self, verb: str, resource: str, name: str = "") -> bool:
        """Raises DatastoreError."""
        asked = (verb, resource, name)
        if asked not in self._known:
            attributes = {"group": GROUP, "resource": resource, "verb": verb, **({"name": name} if name else {})}
            spec = {"user": self._user, "groups": self._groups, "resourceAttributes": attributes}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
            request = ApiRequest("POST", _REVIEWS, f"ask what {self._user} may do", body=body)
            reply = self._api.send(request, self._session.deadline)
            self._known[asked] = (reply.document.get("status") or {}).get("allowed") is True
        return self._known[asked]


def rights(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed, InvalidConfig, DatastoreError."""
    require_value_format(arguments.output)
    if not is_kubernetes(session):
        raise CommandFailed("cannot tell rights on tiers: they are Kubernetes', and the datastore is another")
    is_native = group_of(session).choose(session.deadline).name == NATIVE_GROUP
    questions = AccessQuestions(session, arguments.user, arguments.groups)
    items = session.store.list(ResourceList("Tier"), session.deadline).items
    tiers = sorted(item.key.name for item in items if isinstance(item.key, ResourceKey))
    found = [tier_rights(questions, tier, is_native=is_native) for tier in tiers]
    unchecked = _why_unchecked(session, is_native=is_native)
    if arguments.output != TABLE:
        shown = {"user": arguments.user, "tiers": [asdict(each) for each in found], "unchecked": unchecked}
        return render_value(shown, arguments.output)
    if unchecked:
        arguments.warn(unchecked)
    return _shown(arguments, found)


def tier_rights(questions: AccessQuestions, tier: str, *, is_native: bool) -> TierRights:
    """In ``projectcalico.org/v3`` reads are a matter of the resource alone, and writes of both."""
    may: dict[str, list[str]] = {}
    for resource in RESOURCES:
        verbs = []
        for verb in (*READS, *WRITES):
            in_tier = questions.may("get", "tiers", tier) and questions.may(verb, f"tier.{resource}", f"{tier}.*")
            plain = is_native and questions.may(verb, resource)
            if (plain and (verb in READS or in_tier)) if is_native else in_tier:
                verbs.append(verb)
        may[resource] = verbs
    return TierRights(tier, may)


def _why_unchecked(session: Session, *, is_native: bool) -> str:
    """Why rights on tiers have no effect in this cluster; "" if they have, or if nobody may know."""
    api, doing = kubernetes_store(session).api, "see who checks rights on tiers"
    request = ApiRequest("GET", _HOOKS if is_native else _SERVICE, doing, expect=(403, 404))
    reply = api.send(request, session.deadline)
    if reply.status == 403:
        return ""
    document: Any = reply.document
    if is_native:
        hooks = [hook.get("name") for item in document.get("items") or () for hook in item.get("webhooks") or ()]
        if WEBHOOK not in hooks:
            return (
                f"nobody checks rights on tiers here: no webhook {WEBHOOK} is installed, so the resources' own decide"
            )
    elif reply.status == 404 or not (document.get("spec") or {}).get("service"):
        return "nobody checks rights on tiers here: Calico's API server is not installed, so those on the CRDs decide"
    return ""


def _shown(arguments: Namespace, found: Sequence[TierRights]) -> str:
    rows = [(each.tier, resource, " ".join(verbs) or "-") for each in found for resource, verbs in each.may.items()]
    text: str = arguments.look.columns(("TIER", "POLICIES", "MAY"), rows)
    return text
