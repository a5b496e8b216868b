"""Repairs that a datastore needs before a node's first ADD takes addresses, done once per boot.

Rule: a file records that this was done; upstream uses the same file, so where both run in turn it is done once.
Repeating the work has no effect, so a call does not fail if the file cannot be written. Only the Kubernetes datastore
needs this: an ADD would not find block affinities of older versions.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.log import Log

MARKER = "cni/ipam_upgraded"  # below the run directory, which is emptied at boot


def label_once(
    files: Files,
    run_dir: str,
    log: Log,
    store: KubernetesStore,
    node: str,
    deadline: Deadline,
    *,
    has_started: bool = False,
) -> Sequence[Versioned]:
    """Label the node's block affinities that have no labels, and return those. Raises DatastoreError, DeadlineExceeded,
    TryAgain.

    A server that has just started ignores the file: an older version may have run on the node meanwhile.
    """
    path = f"{run_dir}/{MARKER}"
    if files.exists(path) and not has_started:
        return ()
    from cni_calico.datastore.kubernetes.unlabelled import label_affinities

    labelled = label_affinities(store, deadline, node=node)
    if labelled:
        log.info(f"{len(labelled)} block affinities of an older version have got their labels")
    try:
        files.make_directory(path.rpartition("/")[0], 0o755)
        files.write_atomic(path, b"", 0o644)
    except OSError as e:
        log.warning(f"cannot remember in {path} that older records were checked: {e.strerror or e}")
    return labelled
