"""PURE: what policies need from a selector besides matching: identity, requirements, a prefix on its keys.

Rule: every function keeps the meaning of its tree, except ``with_prefix``, ``read_specially`` and ``require_for_all``,
which say how they change it. A normal form is a text that ``parse_selector`` reads; equal normal forms have equal
meaning (the reverse does not hold: this is not a theorem prover).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cni_calico.model.selectors import ALL, Selector, Tree, parse_selector

NAMESPACE = "projectcalico.org/namespace"
SERVICE_ACCOUNT = "projectcalico.org/serviceaccount"
ORCHESTRATOR = "projectcalico.org/orchestrator"
_UNSELECTIVE = {ORCHESTRATOR: 2, NAMESPACE: 1}  # many endpoints have these values


@dataclass(frozen=True, slots=True)
class Requirement:
    """Whatever matches has ``label``, with one of ``values`` unless ``values`` is None."""

    label: str
    values: frozenset[str] | None = None


# -- building ---------------------------------------------------------------------------------------------------------


def has(label: str) -> Tree:
    return ("has", label)


def equals(label: str, *values: str) -> Tree:
    """The label has one of the values."""
    return ("in", label, frozenset(values))


def negation(tree: Tree) -> Tree:
    return ("not", tree)


def conjunction(*trees: Tree) -> Tree:
    return trees[0] if len(trees) == 1 else ("and", trees)


def with_prefix(tree: Tree, prefix: str) -> Tree:
    """The same tests on labels whose names begin with ``prefix``."""
    kind = tree[0]
    if kind in ("all", "global"):
        return tree
    if kind == "not":
        return ("not", with_prefix(tree[1], prefix))
    if kind in ("and", "or"):
        return (kind, tuple(with_prefix(part, prefix) for part in tree[1]))
    return (kind, prefix + tree[1], *tree[2:])


def read_specially(tree: Tree, label: str) -> Tree:
    """The tree with ``all()`` read as "has the label" and ``global()`` as "does not have it", which is their meaning
    for namespaces and service accounts.
    """
    return _replaced(tree, {"all": has(label), "global": negation(has(label))})


def require_for_all(tree: Tree, label: str) -> Tree:
    """The tree with ``all()`` read as "has the label"."""
    return _replaced(tree, {"all": has(label)})


def _replaced(tree: Tree, meanings: dict[str, Tree]) -> Tree:
    """The tree with other trees in the place of its parts of these kinds."""
    kind = tree[0]
    if kind == "not":
        return ("not", _replaced(tree[1], meanings))
    if kind in ("and", "or"):
        return (kind, tuple(_replaced(part, meanings) for part in tree[1]))
    return meanings.get(kind, tree)


def mentions_global(tree: Tree) -> bool:
    kind = tree[0]
    if kind == "not":
        return mentions_global(tree[1])
    if kind in ("and", "or"):
        return any(mentions_global(part) for part in tree[1])
    return bool(kind == "global")


# -- normal form ------------------------------------------------------------------------------------------------------


def normalized(tree: Tree) -> Selector:
    """The selector without nesting, repetitions, double negations and needless all(), in sorted order."""
    return selector_of(normal_form(tree))


def selector_of(normal: Tree) -> Selector:
    """That of a normal form."""
    return Selector(_text(normal), normal)


def normal_form(tree: Tree) -> Tree:
    kind = tree[0]
    if kind == "global":
        return ALL
    if kind == "not":
        return negated_form(normal_form(tree[1]))
    if kind not in ("and", "or"):
        return tree
    return joined_form(kind, map(normal_form, tree[1]))


def joined_form(kind: str, forms: Iterable[Tree]) -> Tree:
    """The normal form of a conjunction or disjunction of normal forms."""
    parts: dict[str, Tree] = {}
    for part in forms:
        for one in part[1] if part[0] == kind else (part,):
            if one != ALL:
                parts[_text(one)] = one
            elif kind == "or":
                return ALL
    if len(parts) < 2:
        return next(iter(parts.values()), ALL)
    return (kind, tuple(parts[text] for text in sorted(parts)))


def negated_form(inner: Tree) -> Tree:
    """The normal form of the negation of one."""
    return inner[1] if inner[0] == "not" else ("not", inner)


def _text(tree: Tree) -> str:
    kind = tree[0]
    if kind == "all":
        return "all()"
    if kind == "not":
        return _negated_text(tree[1])
    if kind in ("and", "or"):
        return (" && " if kind == "and" else " || ").join(map(_part_text, tree[1]))
    if kind == "has":
        return f"has({tree[1]})"
    if kind == "in":
        return f"{tree[1]} {_values_text(tree[2], '==', 'in')}"
    return f"{tree[1]} {kind} {_quoted(tree[2])}"


def _negated_text(tree: Tree) -> str:
    if tree[0] == "in":
        return f"{tree[1]} {_values_text(tree[2], '!=', 'not in')}"
    return f"!{_part_text(tree)}"


def _part_text(tree: Tree) -> str:
    return f"({_text(tree)})" if tree[0] in ("and", "or") else _text(tree)


def _values_text(values: frozenset[str], one: str, several: str) -> str:
    if len(values) == 1:
        return f"{one} {_quoted(next(iter(values)))}"
    return f"{several} {{{', '.join(map(_quoted, sorted(values)))}}}"


def _quoted(value: str) -> str:
    if '"' not in value:
        return f'"{value}"'
    # a value with both kinds of quotes cannot be written as a selector at all
    return f"'{value}'" if "'" not in value else repr(value)


# -- requirements -----------------------------------------------------------------------------------------------------


def requirements(tree: Tree) -> tuple[Requirement, ...]:
    """The requirements that every match fulfils, the most selective first; none if the selector only excludes."""
    return _combined(normal_form(tree))


def requirements_of(selector: Selector) -> tuple[Requirement, ...]:
    """Those of a selector that is normalized. They are kept in it: a cache would keep the selectors of what is gone."""
    if selector.required is None:
        selector.required = _combined(selector.tree)
    return selector.required


def _combined(tree: Tree) -> tuple[Requirement, ...]:
    found: dict[str, Requirement] = {}
    for one in _requirements(tree):
        held = found.get(one.label)
        if held is None or held.values is None:
            found[one.label] = one
        elif one.values is not None:
            found[one.label] = Requirement(one.label, held.values & one.values)
    return tuple(sorted(found.values(), key=_rank))


def _rank(requirement: Requirement) -> tuple[int, int, int, str]:
    values = requirement.values
    return (
        values is None,
        _UNSELECTIVE.get(requirement.label, 0),
        len(values or ()),
        requirement.label,
    )


def _requirements(tree: Tree) -> list[Requirement]:
    kind = tree[0]
    if kind == "in":
        return [Requirement(tree[1], tree[2])]
    if kind == "and":
        return [one for part in tree[1] for one in _requirements(part)]
    if kind == "or":
        return _common([_combined(part) for part in tree[1]])
    if kind in ("all", "global", "not"):
        return []
    return [Requirement(tree[1])]


def _common(alternatives: list[tuple[Requirement, ...]]) -> list[Requirement]:
    """The requirements that all of the alternatives have in common."""
    common = []
    by_label = [{one.label: one.values for one in alternative} for alternative in alternatives]
    for label in by_label[0]:
        if all(label in other for other in by_label):
            values = [other[label] for other in by_label]
            joined = None if None in values else frozenset().union(*(v for v in values if v is not None))
            common.append(Requirement(label, joined))
    return common


def parse_tree(text: str) -> Tree:
    """Raises InvalidSelector."""
    return parse_selector(text).tree
