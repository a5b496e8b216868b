"""``calicoctl version``: of this program, and of the data in the datastore."""

from __future__ import annotations

from argparse import Namespace

from cni_calico import __version__
from cni_calico.ctl.ipam.records import read_cluster
from cni_calico.ctl.session import Session
from cni_calico.errors import DatastoreError, DeadlineExceeded


def version(session: Session, arguments: Namespace) -> str:
    """The program's version is also told when the datastore does not answer."""
    text = f"Client Version:    {__version__}\n"
    try:
        spec, _ = read_cluster(session)
    except (DatastoreError, DeadlineExceeded) as e:
        arguments.note(f"Unable to retrieve Cluster Version or Type: {e}")
        return text
    unknown = "unknown"
    text += f"Cluster Version:   {spec.get('calicoVersion') or unknown}\n"
    return text + f"Cluster Type:      {spec.get('clusterType') or unknown}\n"
