"""Whether what pods of two nodes send one another is encrypted, in words, for ``policy explain``.

Rule: computed from what is stored, as the agents judge it; nothing is said where encryption was never enabled.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.session import Session
from cni_calico.model.resources import Node
from cni_calico.model.wireguard import published_key


def is_told(nodes: Mapping[str, Node], family: int) -> bool:
    """PURE: whether any Node has a key of the family."""
    return any(published_key(node, family) for node in nodes.values())


def describe_between(session: Session, nodes: Mapping[str, Node], ends: tuple[str, str], family: int) -> str:
    """``ends``: the names of the pods' nodes. "" for pods of one node, and where it is off. Raises DatastoreError."""
    first, second = ends
    both = {name: nodes[name] for name in ends if name in nodes}
    if first == second or not is_told(nodes, family):
        return ""
    from cni_calico.ctl.encryption.keys import read_wanted

    wanted = read_wanted(session)
    if len(both) < len(ends):
        missing = next(name for name in ends if name not in both)
        return f"Between nodes {first} and {second} it is not encrypted: there is no Node {missing}."
    problem = why_plain(nodes, ends, family)
    if not problem:
        return f"Between nodes {first} and {second} it is encrypted, if their agents have followed."
    if wanted.mandatory and not {*ends} & {*wanted.exempt}:
        return f"It does NOT go between nodes {first} and {second}: encryption is mandatory, and {problem}."
    return f"Between nodes {first} and {second} it is NOT encrypted: {problem}."


def why_plain(nodes: Mapping[str, Node], ends: tuple[str, str], family: int) -> str:
    """PURE: what is wrong with the keys of either, "" if nothing is."""
    from cni_calico.ctl.encryption.keys import judge_keys

    problems = [f"node {one.node}: {one.problem}" for one in judge_keys(nodes, {}, family) if one.problem]
    return "; ".join(one for one in problems if one.startswith(tuple(f"node {end}: " for end in ends)))
