"""Rights on tiers, against a table of what an API server would say."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.controllers.admission.decisions import ANSWER_S, TierAuthorizer, decide_cluster_information
from cni_calico.controllers.admission.reviews import ALLOWED, Asker, UnreadableReview, WriteReview
from cni_calico.datastore.kubernetes.answers import ApiReply
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable
from tests.deadlines import soon


class RoleServer:
    """An API server whose roles are a set of (verb, resource, name); ``tiers``: name -> metadata."""

    def __init__(self, *rights: tuple[str, str, str], **tiers: dict[str, Any]) -> None:
        self.rights, self.tiers, self.asked = set(rights), tiers, 0
        self.away = False

    def send(self, request: Any, _deadline: Deadline) -> ApiReply:
        if self.away:
            raise DatastoreUnavailable("cannot ask: it is away")
        self.asked += 1
        spec = request.body["spec"]
        wanted = spec["resourceAttributes"]
        assert (wanted["group"], spec["user"], spec["groups"]) == ("projectcalico.org", "alice", ["dev"])
        allowed = (wanted["verb"], wanted["resource"], wanted["name"]) in self.rights
        return ApiReply(201, {"status": {"allowed": allowed}})

    def get(self, path: str, _deadline: Deadline, _doing: str) -> Any:
        metadata = self.tiers.get(path.rpartition("/")[2])
        return None if metadata is None else {"metadata": metadata}


def review(
    verb: str, *, new: str | None = None, old: str | None = None, kind: str = "GlobalNetworkPolicy"
) -> WriteReview:
    objects = [None if tier is None else {"metadata": {"name": "a1"}, "spec": {"tier": tier}} for tier in (new, old)]
    namespace = "" if kind.startswith("Global") else "shop"
    return WriteReview("u", verb, kind, "a1", namespace, Asker("alice", groups=("dev",)), objects[0], objects[1])


def why(server: Any, asked: WriteReview) -> str:
    return TierAuthorizer(server).decide(asked, soon()).why


SEE = ("get", "tiers", "sec")
PSEUDO = "tier.globalnetworkpolicies"


@pytest.mark.parametrize("name", ["sec.*", "a1"])
def test_the_tier_and_either_the_policy_or_all_of_the_tier(name: str) -> None:
    server = RoleServer(SEE, ("create", PSEUDO, name), sec={})
    assert why(server, review("create", new="sec")) == ""
    assert "cannot update" in why(server, review("update", new="sec", old="sec"))


def test_upstreams_words() -> None:
    words = (
        'Authorization failed: globalnetworkpolicies.projectcalico.org "a1" is forbidden: User "alice" cannot create'
        ' globalnetworkpolicies.projectcalico.org in tier "sec"'
    )
    assert why(RoleServer(SEE, sec={}), review("create", new="sec")) == words
    unseen = RoleServer(("create", PSEUDO, "sec.*"), sec={})
    assert why(unseen, review("create", new="sec")) == f"{words} (user cannot get tier)"
    namespaced = why(RoleServer(SEE, sec={}), review("create", new="sec", kind="NetworkPolicy"))
    assert namespaced.endswith('in tier "sec" and namespace "shop"')


def test_a_change_of_the_tier_needs_rights_on_both() -> None:
    rights = [(SEE), ("update", PSEUDO, "sec.*"), ("get", "tiers", "ops"), ("update", PSEUDO, "ops.*")]
    tiers: dict[str, dict[str, Any]] = {"sec": {}, "ops": {}}
    moved = review("update", new="ops", old="sec")
    assert why(RoleServer(*rights, **tiers), moved) == ""
    for missing in rights:
        kept = [each for each in rights if each != missing]
        said = why(RoleServer(*kept, **tiers), moved)
        assert said.startswith(
            "Authorization failed for old tier: " if "sec" in missing[2] else "Authorization failed: "
        )


def test_a_policy_comes_only_into_a_tier_that_is_there_and_stays() -> None:
    rights = [SEE, *((verb, PSEUDO, "sec.*") for verb in ("create", "update", "delete"))]
    gone, going = RoleServer(*rights), RoleServer(*rights, sec={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert why(gone, review("create", new="sec")) == 'Tier "sec" does not exist'
    assert why(going, review("create", new="sec")) == 'Tier "sec" is being deleted'
    for server in (gone, going):  # what is in it can be repaired, and taken away
        assert why(server, review("update", new="sec", old="sec")) == ""
        assert why(server, review("delete", old="sec")) == ""


@pytest.mark.parametrize("tier", ["a/b", "..", "a?b", "sec/"])
def test_a_tier_whose_name_is_none(tier: str) -> None:
    server = RoleServer(("get", "tiers", tier), ("create", PSEUDO, f"{tier}.*"), sec={}, b={})
    assert why(server, review("create", new=tier)) == f'Tier "{tier}" does not exist'


def test_answers_are_remembered_for_a_while_and_refusals_too() -> None:
    now = 100.0
    server: Any = RoleServer(SEE, ("delete", PSEUDO, "sec.*"), sec={})
    tiers = TierAuthorizer(server, lambda: now)
    assert tiers.decide(review("delete", old="sec"), soon()) == ALLOWED
    asked = server.asked
    server.rights.clear()
    assert tiers.decide(review("delete", old="sec"), soon()) == ALLOWED and server.asked == asked
    now += ANSWER_S
    assert tiers.decide(review("delete", old="sec"), soon()).why
    server.rights |= {SEE, ("delete", PSEUDO, "sec.*")}
    assert tiers.decide(review("delete", old="sec"), soon()).why
    now += ANSWER_S
    assert tiers.decide(review("delete", old="sec"), soon()) == ALLOWED


def test_what_cannot_be_asked_is_not_allowed() -> None:
    server = RoleServer(SEE, ("delete", PSEUDO, "sec.*"), sec={})
    server.away = True
    with pytest.raises(DatastoreUnavailable):
        why(server, review("delete", old="sec"))
    with pytest.raises(UnreadableReview):
        why(RoleServer(), review("delete", old="sec", kind="Secret"))


@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        ("system:serviceaccount:kube-system:calico-node", True),
        ("system:serviceaccount:kube-system:calico-kube-controllers", True),
        ("system:serviceaccount:kube-system:calico-typha", True),
        ("system:serviceaccount:default:calico-node", False),
        ("system:serviceaccount:kube-system:default", False),
        ("kubernetes-admin", False),
    ],
)
def test_cluster_information(user: str, allowed: bool) -> None:
    asked = WriteReview("u", "update", "ClusterInformation", "default", "", Asker(user), {}, {})
    answer = decide_cluster_information(asked, "kube-system")
    assert answer.why == ("" if allowed else f"ClusterInformation is a read-only resource (user: {user})")
    assert allowed or (answer.code, answer.reason) == (405, "MethodNotAllowed")
