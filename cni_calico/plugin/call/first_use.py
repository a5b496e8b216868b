"""What has to be put right in the datastore before a node's first ADD takes addresses: once until the next boot.

Rule: the file that remembers it is upstream's, too, so where both take turns it is done once. Without it the work
is done again, which finds nothing: that it cannot be written is no failure of the call. Only the Kubernetes datastore
has such a thing: block affinities of older versions, which no ADD would find.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    """The node's block affinities that have got their labels now. Raises DatastoreError, DeadlineExceeded, TryAgain.

    A server that has just started looks whatever the file says: an older version may have run on the node meanwhile.
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
        log.warning(f"cannot remember in {path} that older records are in order: {e.strerror or e}")
    return labelled
