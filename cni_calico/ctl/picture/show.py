"""``calicoctl show``: a picture of the cluster, as text or as one HTML page.

Rule: everything comes from the datastore; what only the nodes know is not shown, such as whether a session is up. But
whether there is BGP at all is asked of the agent of this host, if it lives and its node is one of the cluster's.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import deque
from collections.abc import Collection
from dataclasses import asdict

from cni_calico import directories
from cni_calico.ctl.ipam.records import read_cluster, read_records
from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.picture.facts import Picture, picture_of
from cni_calico.ctl.session import Session
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.resources import Resource
from cni_calico.nodeagent.status import file as agent_status


def show(session: Session, arguments: Namespace) -> str:
    """Raises DatastoreError, CalicoError if the page cannot be written."""
    picture = read_picture(session)
    if arguments.html:
        from cni_calico.ctl.picture.page import render_page

        write_file(arguments.html, render_page(picture, session.now()))
        return f"Wrote {arguments.html}: open it in a browser.\n"
    if arguments.output != TABLE:
        return render_value(asdict(picture), arguments.output)
    from cni_calico.ctl.picture.text import render_text

    return render_text(picture, arguments.look)


def read_picture(session: Session) -> Picture:
    """Raises DatastoreError."""
    spec, _ = read_cluster(session)
    records = read_records(session)
    deque(records.endpoints, 0)  # which of them cannot be read is known then
    for key, why in records.corrupt:
        session.damaged.append((key, why))
    configurations, peers, filters = (_read(session, kind) for kind in ("BGPConfiguration", "BGPPeer", "BGPFilter"))
    backend = _read_backend({node.metadata.name for node in records.nodes})
    return picture_of(records, spec, configurations=configurations, peers=peers, filters=filters, backend=backend)


def _read_backend(nodes: Collection[str]) -> str:
    """What the living agent of this host uses; "" if there is none, or it is not one of these nodes'."""
    fields = agent_status.read_status(directories.run_dir(os.environ))
    if agent_status.why_not_live(fields, agent_status.since_boot()) or fields.get("node") not in nodes:
        return ""
    return str(fields.get("backend") or "")


def _read(session: Session, kind: str) -> list[Resource]:
    found = read_kind(session, kind, decode_resource, lambda key, error: session.note_damaged(key, str(error)))
    return [record for _, record in found]
