"""Block affinities that older versions of Calico wrote without labels: found, and written again with them.

Rule: whoever asks for the affinities of one node asks by their labels, so those without are as good as not there until
this has been done. They are found without reading all others, and written as they are: what somebody changes meanwhile
is looked at again. Source: SPEC-datamodel "Kubernetes".
"""

from __future__ import annotations

from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.datastore.kubernetes.layout import HOSTNAME_HASH
from cni_calico.errors import TryAgain
from cni_calico.model.keys import AffinityKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cni_calico.datastore.interface import Datastore, Versioned
    from cni_calico.datastore.kubernetes.store import KubernetesStore
    from cni_calico.deadline import Deadline

_ATTEMPTS = 5


def label_affinities(
    kubernetes: KubernetesStore, deadline: Deadline, *, node: str = "", store: Datastore | None = None
) -> Sequence[Versioned]:
    """Label those of ``node`` ("": of all nodes, and of load balancers); the records with labels that were without.

    ``store`` writes in place of ``kubernetes``. One request where there is nothing to do. Raises DatastoreError,
    DeadlineExceeded, TryAgain.
    """
    labelled: list[Versioned] = []
    for _ in range(_ATTEMPTS):
        contended = False
        for item in kubernetes.unlabelled_affinities(deadline):
            if node and not (isinstance(item.key, AffinityKey) and (item.key.node, item.key.type) == (node, "host")):
                continue
            try:
                value = {**item.value, "state": item.value.get("state") or "confirmed"}  # types want one
                labelled += (store or kubernetes).commit([Write.update(item, value)], deadline).stored
            except CommitConflict as e:
                # gone, or an object whose name is not that of its block: there is nothing to look at again
                contended |= e.failed[0].current is not None
        if not contended:
            return labelled
    raise TryAgain(f"cannot label the block affinities that have no {HOSTNAME_HASH}: they keep changing")
