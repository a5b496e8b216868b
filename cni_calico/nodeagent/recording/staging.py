"""Follows the staged policies, for what they would do to the flows that are recorded.

Rule: nothing is followed while no flows are recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.policy.staged import STAGED_KINDS, StagedPolicy, read_staged


class StagedFollower:
    """``use`` in one thread. ``stored``: as for read_staged. ``note`` is called with what cannot be read, "" for
    nothing.
    """

    def __init__(
        self, store: Datastore, rules: StagedRules, *, stored: bool, note: Callable[[str], object] = lambda why: None
    ) -> None:
        self._store, self._rules, self._stored, self._note = store, rules, stored, note
        self._caches: list[Cache[StagedPolicy | None]] = []

    def use(self, *, wanted: bool) -> None:
        if wanted and not self._caches:
            self._caches = [self._follow(kind) for kind in STAGED_KINDS]
        elif not wanted and self._caches:
            for cache in self._caches:
                cache.stop()
            self._caches = []
            self._rules.stage_none()
        failing = [str(cache.error) for cache in self._caches if cache.error]
        self._note(f"staged policies are not known as they are now: {failing[0]}" if failing else "")

    def _follow(self, kind: str) -> Cache[StagedPolicy | None]:
        rules = self._rules

        def put(key: Key, staged: StagedPolicy | str | None) -> None:
            assert isinstance(key, ResourceKey)
            rules.stage(key, staged)

        listeners = Listeners[StagedPolicy | None](corrupt=put, hand_over=put, gone=lambda key: put(key, None))
        kept = Kept(ResourceList(kind), self._decode, keep_documents=False)
        return Cache(self._store, kept, listeners, cached=True)

    def _decode(self, item: Versioned) -> StagedPolicy | None:
        """Raises CorruptRecord."""
        assert isinstance(item.key, ResourceKey)
        return read_staged(item.key, item.value, stored=self._stored)
