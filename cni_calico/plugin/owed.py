"""Durable records of owed releases: what must still be released because the datastore could not be reached.

Rule: one file per attachment under <state>/cni/pending-del/, written atomically, mode 0600; it names handles and the
endpoint, never only an address, so paying it cannot release what was assigned to another container meanwhile. A new ADD
of the same attachment cancels it. A file that cannot be read is left and reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from cni_calico.directories import OWED_RELEASES
from cni_calico.errors import CalicoError, DecodeFailure, KernelError
from cni_calico.kernel.files import Files
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from cni_calico.model.names import parse_endpoint_name, sha1_hex
from cni_calico.model.resources import Address
from cni_calico.plugin.attachment import Attachment

FORMAT = 1


@dataclass(frozen=True, slots=True)
class OwedRelease:
    """The task to release everything that an attachment may hold in a datastore."""

    attachment: Attachment
    datastore: DatastoreConfig
    recorded: str = field(default="", compare=False)  # when it was recorded, in RFC 3339
    addresses: frozenset[Address] = (
        frozenset()
    )  # the endpoint's addresses; its record may be gone by the time this is carried out
    uids: tuple[
        str, ...
    ] = ()  # the UIDs that the endpoint's record may have, if another record of that name is to stay; (): any


def file_name(attachment: Attachment) -> str:
    """The file name for an attachment: there is at most one."""
    return sha1_hex(attachment.label) + ".json"


def directory(state_dir: str) -> str:
    return f"{state_dir}/{OWED_RELEASES}"


def record(files: Files, state_dir: str, owed: OwedRelease) -> None:
    """Write the record durably. What an earlier record of the attachment owes is added to it. Raises OSError."""
    from dataclasses import asdict  # the import takes 5 ms

    attachment, key = owed.attachment, owed.attachment.endpoint_key
    addresses, uids = owed.addresses, owed.uids
    files.make_directory(directory(state_dir))
    before = read_own(files, state_dir, attachment)
    if before is not None:
        addresses |= before.addresses
        uids = (*before.uids, *uids) if before.uids and uids else ()
    document = {
        "format": FORMAT,
        "network": attachment.network,
        "container_id": attachment.container_id,
        "ifname": attachment.ifname,
        "handle_ids": attachment.handle_ids,
        "endpoint": (key.namespace, key.name),
        "datastore": asdict(owed.datastore),
        "recorded": owed.recorded,
        "addresses": sorted(map(str, addresses)),
        "uids": uids,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    files.write_atomic(f"{directory(state_dir)}/{file_name(attachment)}", data, 0o600)


def remove(files: Files, state_dir: str, file_name: str) -> None:
    """Remove a record, and any temporary file that a dead writer left; absent is success. Raises OSError.

    The caller holds the attachment's lock, so nobody is writing it now.
    """
    for name in files.names(directory(state_dir)):
        if name == file_name or (name.startswith(f".{file_name}.") and name.endswith((".new", ".reported"))):
            files.remove(f"{directory(state_dir)}/{name}")


def is_first_report(files: Files, state_dir: str, name: str) -> bool:
    """Whether this file has not been reported as unreadable before; from now on it counts as reported."""
    mark = f"{directory(state_dir)}/.{name}.reported"
    if files.exists(mark):
        return False
    try:
        files.append(mark, b"")
    except OSError:
        pass  # then it is reported again
    return True


def cancel(files: Files, state_dir: str, attachment: Attachment) -> None:
    """Cancel what an earlier DEL of this attachment still owes. Raises KernelError."""
    name = file_name(attachment)
    try:
        remove(files, state_dir, name)
    except OSError as e:
        raise KernelError(
            f"cannot remove {directory(state_dir)}/{name}, which says that this attachment is to be released: {e}",
            errno=e.errno or 0,
        ) from e


def read_own(files: Files, state_dir: str, attachment: Attachment) -> OwedRelease | None:
    """What is still to be released for this attachment, None if nothing is or it cannot be read."""
    name = file_name(attachment)
    if not files.exists(f"{directory(state_dir)}/{name}"):
        return None
    try:
        return read(files, state_dir, name)
    except (OSError, CalicoError):
        return None


def read_all(files: Files, state_dir: str, *, after: str = "") -> Iterator[tuple[str, OwedRelease | str]]:
    """(file name, record) of every owed release; (file name, what is wrong) for one that cannot be read.

    Sorted by name, starting after ``after`` and wrapping around.
    """
    names = files.names(directory(state_dir))
    for name in [name for name in names if name > after] + [name for name in names if name <= after]:
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            owed = read(files, state_dir, name)
        except (OSError, CalicoError) as e:
            yield name, str(e)
            continue
        if owed is not None:  # otherwise another process has paid it
            yield name, owed


def read(files: Files, state_dir: str, name: str) -> OwedRelease | None:
    """One recorded release, None if there is none. Raises OSError, DecodeFailure."""
    try:
        return _parse(json.loads(files.read_bytes(f"{directory(state_dir)}/{name}")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise DecodeFailure(f"cannot read {directory(state_dir)}/{name}: {type(e).__name__}: {e}") from e


def _parse(document: Mapping[str, Any]) -> OwedRelease:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r} is not {FORMAT}: written by another release")
    namespace, endpoint = document["endpoint"]
    node, orchestrator, workload, ifname = parse_endpoint_name(endpoint)
    datastore = dict(document["datastore"])
    datastore["kubernetes"] = KubernetesAccess(**datastore["kubernetes"])
    datastore["etcd_endpoints"] = tuple(datastore["etcd_endpoints"])
    return OwedRelease(
        Attachment(document["network"], node, orchestrator, namespace, workload, document["container_id"], ifname),
        DatastoreConfig(**datastore),
        document["recorded"],
        frozenset(map(ip_address, document.get("addresses", ()))),  # earlier releases recorded neither
        tuple(document.get("uids", ())),
    )
