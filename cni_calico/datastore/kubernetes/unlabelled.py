"""Finds block affinities that older versions of Calico wrote without labels, and writes them again with labels.

Rule: the affinities of one node are selected by their labels, so those without labels are invisible until this has been
done. They are found without reading all others, and nothing else in them is changed; one that another process changes
meanwhile is read again.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.datastore.interface import CommitConflict, Datastore, Versioned, Write
from cni_calico.datastore.kubernetes.layout import HOSTNAME_HASH
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.model.keys import AffinityKey

_ATTEMPTS = 5


def label_affinities(
    kubernetes: KubernetesStore, deadline: Deadline, *, node: str = "", store: Datastore | None = None
) -> Sequence[Versioned]:
    """Label those of ``node`` ("": of all nodes, and of load balancers); returns the records that had no labels, with
    labels.

    ``store`` writes instead of ``kubernetes``. One request if there is nothing to do. Raises DatastoreError,
    DeadlineExceeded, TryAgain.
    """
    labelled: list[Versioned] = []
    for _ in range(_ATTEMPTS):
        contended = False
        for item in kubernetes.unlabelled_affinities(deadline):
            if node and not (isinstance(item.key, AffinityKey) and (item.key.node, item.key.type) == (node, "host")):
                continue
            try:
                value = {
                    **item.value,
                    "state": item.value.get("state") or "confirmed",
                }  # the API server requires a state
                labelled += (store or kubernetes).commit([Write.update(item, value)], deadline).stored
            except CommitConflict as e:
                # gone, or an object whose name is not that of its block: no reason to look again
                contended |= e.failed[0].current is not None
        if not contended:
            return labelled
    raise TryAgain(f"cannot label the block affinities that have no {HOSTNAME_HASH}: they keep changing")
