"""PURE: records that are two here and would be one there.

Rule: such records are named before anything is written, because the later one would take the earlier one's place
unseen. In crd.projectcalico.org/v1 policies "foo" and "default.foo" are one object, and in both groups of Kubernetes
handles that differ in capital letters are; in that group, an older version's object "default.foo" and an object "foo"
are both policy "foo".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from cni_calico.ctl.session import CommandFailed
from cni_calico.datastore.interface import Versioned
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key, ResourceKey
from cni_calico.model.kubernetes.custom import Place


def require_one_record_each(items: Iterable[Versioned]) -> None:
    """Raises CommandFailed for keys that several records have."""
    twice = [key for key, count in Counter(item.key for item in items).items() if count > 1]
    if twice:
        first = twice[0]
        name = first.name if isinstance(first, ResourceKey) else ""
        named = ", ".join(describe(key) for key in twice)
        raise CommandFailed(
            f"cannot export the datastore: several records are {named}; with kubectl, compare the objects {name} and "
            f"default.{name} of crd.projectcalico.org, delete one, and export again"
        )


def find_shared(place_of: Callable[[Key], Place], keys: Iterable[Key]) -> Sequence[Sequence[Key]]:
    """The keys that have one place, where they are several."""
    found: dict[Place, list[Key]] = {}
    for key in keys:
        found.setdefault(place_of(key), []).append(key)
    return [sharing for sharing in found.values() if len(sharing) > 1]


def require_own_places(place_of: Callable[[Key], Place], keys: Iterable[Key]) -> None:
    """Raises CommandFailed."""
    shared = find_shared(place_of, keys)
    if shared:
        pairs = "; ".join(" and ".join(describe(key) for key in sharing) for sharing in shared)
        raise CommandFailed(
            f"cannot import: records that would be one object there: {pairs}. Rename or delete one of each where they "
            "come from, and export again"
        )
