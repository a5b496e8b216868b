"""PURE: whether this node enforces policy for its workloads now, and the text that says so.

Rule: an update must not cut off any workload. While something that policies need is missing, no policy is enforced, and
that is reported; a node that has enforced policy continues, even if the reasons for the decision change.

- PolicyEnforcement is Disabled: no, and that is reported.
- Something of this node makes our rules worse than upstream's, which are there (``held``): no, and the node is not
  ready, so that a rolling update stops.
- Kubernetes with etcd: a profile that does not exist drops everything, and older clusters have none. Not before a
  namespace's profile (``kns.``) has been seen, and every profile that this node's workloads name; until then the node
  is not ready.
- No Kubernetes: yes, while there is a policy. The networks' profiles admit only their own members, so without that
condition published ports would close with the update.
- Otherwise: yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAMESPACE_PROFILE = "kns."
_NAMED = 5  # the number of missing things listed in a sentence


@dataclass(frozen=True, slots=True)
class GateFacts:
    """``policies``: how many policies are enforced anywhere, plus how many host endpoints this node has.

    ``is_policing``: our tables are in the kernel.

    ``missing_profiles``: those that workloads of this node name and that do not exist. ``held``: why upstream's rules
    have to stay, "" for no reason.
    """

    enabled: bool
    has_kubernetes: bool
    is_kubernetes_datastore: bool
    has_namespace_profile: bool
    policies: int
    is_policing: bool
    missing_profiles: tuple[str, ...] = ()
    held: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """``why`` says why not, "" while policy is enforced. ``ready``: the node may be ready without enforcing policy.

    ``upstream_goes``: what upstream's agent left may be removed although no policy is enforced. ``none_exist``: that is
    the only reason. ``upstream_stays``: what it left decides meanwhile.
    """

    police: bool
    ready: bool = True
    why: str = ""
    upstream_goes: bool = False
    none_exist: bool = False
    upstream_stays: bool = False


POLICE = Gate(True)


def decide(facts: GateFacts) -> Gate:
    if not facts.enabled:
        return Gate(False, why="FELIX_POLICYENFORCEMENT is Disabled", upstream_goes=True)
    if facts.held and not facts.is_policing:
        return Gate(False, ready=False, why=facts.held, upstream_stays=True)
    if facts.has_kubernetes:
        if facts.is_kubernetes_datastore or facts.is_policing:
            return POLICE
        missing = facts.missing_profiles
        if facts.has_namespace_profile and not missing:
            return POLICE
        what = f"profiles of this node's workloads ({listed(missing)})" if missing else "profiles (kns.NAMESPACE)"
        return Gate(
            False,
            ready=False,
            why=f"there are no {what} in etcd, and without them everything would be dropped: the controllers make "
            "them (calico-kube-controllers)",
        )
    if facts.policies:
        return POLICE
    return Gate(False, why="there is no policy", upstream_goes=True, none_exist=True)


def listed(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
