"""``calicoctl encryption strict on|off``: whether what is not encrypted may go between nodes.

Rule: on is refused while it would cut a node: one without a usable key, in a family that is enabled, or no family that
is. Only the annotation of the FelixConfiguration ``default`` is changed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.encryption.keys import DEFAULT, SETTINGS, STRICT, judge_keys, read_nodes, wanted_by
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.ensure import ensure_record
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey

ON, OFF = "on", "off"


def strict(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed, DatastoreError."""
    nodes, unread = read_nodes(session)

    def change(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if document is None and arguments.state == OFF:
            return None
        old: dict[str, Any] = {"kind": SETTINGS, "apiVersion": API_VERSION, "metadata": {"name": DEFAULT}, "spec": {}}
        old |= dict(document or {})
        if arguments.state == ON and not arguments.force:
            wanted = wanted_by(old)
            if not wanted.families:
                raise CommandFailed(
                    "cannot make encryption mandatory: it is not enabled, so that no packet would go between nodes; "
                    "set wireguardEnabled (wireguardEnabledV6) in the FelixConfiguration default first, or use --force"
                )
            cut = [
                f"{one.node} (IPv{one.family}: {one.problem})"
                for family in wanted.families
                for one in judge_keys(nodes, unread, family)
                if one.problem and one.node not in wanted.exempt
            ]
            if cut:
                raise CommandFailed(
                    f"cannot make encryption mandatory: it would cut off {', '.join(cut)}; wait for their keys, name "
                    "them in the annotation cni-calico.io/wireguard-exempt, or use --force"
                )
        metadata = dict(old["metadata"])
        annotations = {name: text for name, text in (metadata.get("annotations") or {}).items() if name != STRICT}
        if arguments.state == ON:
            annotations[STRICT] = "true"
        metadata["annotations"] = annotations
        if not annotations:
            del metadata["annotations"]
        return {**old, "metadata": metadata}

    changed = ensure_record(session.store, ResourceKey(SETTINGS, DEFAULT), change, session.deadline).changed
    if arguments.state == ON:
        return "Encryption is mandatory now.\n" if changed else "Encryption was mandatory already.\n"
    return "Encryption is not mandatory any more.\n" if changed else "Encryption was not mandatory.\n"
