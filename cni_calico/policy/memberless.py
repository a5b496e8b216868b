"""PURE: sets whose members nobody asks for: who lists policies wants to know which apply, not to whom they refer.

Rule: everything else is as with members: which sets rules name, and how many of which sort.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.records import Labelled, ServiceMembers
from cni_calico.policy.sets import Sets


class MemberlessSets(Sets):
    """What may be a member is not noted, so each set stays empty."""

    def set_item(self, key: ResourceKey, item: Labelled | None) -> None:
        pass

    def set_profile(self, name: str, labels: Mapping[str, str] | None) -> None:
        pass

    def set_slice(self, key: ResourceKey, members: ServiceMembers | None) -> None:
        pass
