"""Who may write a policy, by his rights on its tier, and who may write ClusterInformation.

Rule: the API server is asked (SubjectAccessReview), so Kubernetes' roles decide, as they do for Calico's API server:
the writer may ``get`` the tier, and do the verb with ``tier.<resource>``, by the policy's name or by ``<tier>.*``. An
answer counts for ANSWER_S. What cannot be asked is not allowed.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

from cni_calico.controllers.admission.reviews import (
    ALLOWED,
    POLICIES,
    AdmissionAnswer,
    Asker,
    UnreadableReview,
    WriteReview,
    tier_of,
)
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline

GROUP, VERSION = "projectcalico.org", "v3"
TIERS = f"/apis/{GROUP}/{VERSION}/tiers"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ANSWER_S = 5.0
KEPT = 10_000  # answers
WRITERS = ("calico-node", "calico-kube-controllers", "calico-typha")  # service accounts, of ClusterInformation
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_AccessQuestion = tuple[Asker, str, str, str, str]


class TierAuthorizer:
    """``now``: seconds of any clock that does not go back. Safe with threads."""

    def __init__(self, api: KubernetesAPI, now: Callable[[], float] = time.monotonic) -> None:
        self._api, self._now = api, now
        self._known: dict[_AccessQuestion, tuple[float, bool]] = {}
        self._lock = threading.Lock()

    def decide(self, review: WriteReview, deadline: Deadline) -> AdmissionAnswer:
        """Raises UnreadableReview; DatastoreError, DeadlineExceeded: it is not known."""
        if review.kind not in POLICIES:
            raise UnreadableReview(f"{review.kind} is in no tier")
        new, old = (None if each is None else tier_of(review.kind, each) for each in (review.new, review.old))
        tiers = list(dict.fromkeys(tier for tier in (new, old) if tier is not None))
        for tier in tiers:
            why = self._why_not(review, tier, deadline)
            if why:
                of_former = " for old tier" if tier != tiers[0] else ""
                return AdmissionAnswer(f"Authorization failed{of_former}: {why}")
        return ALLOWED if new is None or new == old else self._enter(new, deadline)

    def _why_not(self, review: WriteReview, tier: str, deadline: Deadline) -> str:
        resource, asker = POLICIES[review.kind], review.asker
        may_see = self._may(asker, "get", "tiers", "", tier, deadline)
        if may_see:
            pseudo = f"tier.{resource}"
            names = [review.name, f"{tier}.*"] if review.name else [f"{tier}.*"]
            if any(self._may(asker, review.verb, pseudo, review.namespace, name, deadline) for name in names):
                return ""
        named = f' "{review.name}"' if review.name else ""
        within = f' and namespace "{review.namespace}"' if review.namespace else ""
        return (
            f'{resource}.{GROUP}{named} is forbidden: User "{asker.user}" cannot {review.verb} {resource}.{GROUP}'
            f' in tier "{tier}"{within}{"" if may_see else " (user cannot get tier)"}'
        )

    def _may(self, asker: Asker, verb: str, resource: str, namespace: str, name: str, deadline: Deadline) -> bool:
        question = (asker, verb, resource, namespace, name)
        with self._lock:
            asked_at, allowed = self._known.get(question, (float("-inf"), False))
        if self._now() - asked_at < ANSWER_S:
            return allowed
        attributes = {"group": GROUP, "version": VERSION, "resource": resource, "verb": verb, "name": name}
        spec: dict[str, Any] = {
            "user": asker.user,
            "uid": asker.uid,
            "groups": list(asker.groups),
            "extra": {key: list(values) for key, values in asker.extra},
            "resourceAttributes": {**attributes, **({"namespace": namespace} if namespace else {})},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        reply = self._api.send(ApiRequest("POST", REVIEWS, f"ask what {asker.user} may do", body=body), deadline)
        allowed = (reply.document.get("status") or {}).get("allowed") is True
        with self._lock:
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[question] = (self._now(), allowed)
        return allowed

    def _enter(self, tier: str, deadline: Deadline) -> AdmissionAnswer:
        """A policy that comes into a tier needs one that is there, and that stays."""
        found = None
        if _NAME.fullmatch(tier):  # it becomes part of a path
            found = self._api.get(f"{TIERS}/{tier}", deadline, f"see tier {tier}")
        if found is None:
            return AdmissionAnswer(f'Tier "{tier}" does not exist')
        if (found.get("metadata") or {}).get("deletionTimestamp"):
            return AdmissionAnswer(f'Tier "{tier}" is being deleted')
        return ALLOWED


def decide_cluster_information(review: WriteReview, namespace: str) -> AdmissionAnswer:
    """Only Calico's own programs, in the webhook's namespace, may write it."""
    user = review.asker.user
    if user in {f"system:serviceaccount:{namespace}:{name}" for name in WRITERS}:
        return ALLOWED
    return AdmissionAnswer(f"ClusterInformation is a read-only resource (user: {user})", 405, "MethodNotAllowed")
