"""Durable records of owed releases: what must still be released because the datastore could not be reached.

Rule: one file per attachment under <state>/cni/pending-del/, written atomically, mode 0600; it names handles and the
endpoint, never only an address, so a replay cannot release what was assigned to another container meanwhile. A new ADD
of the same attachment cancels it. A file that cannot be read is left and reported.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from cni_calico.errors import CalicoError, DecodeFailure, KernelError
from cni_calico.kernel.files import Files
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from cni_calico.model.names import parse_endpoint_name, sha1_hex
from cni_calico.plugin.attachment import Attachment

if TYPE_CHECKING:
    from cni_calico.model.resources import Address

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Intent:
    """A release that is owed. ``endpoint`` is (namespace, name) of the record to clear."""

    network: str
    container_id: str
    ifname: str
    handle_ids: tuple[str, ...]
    endpoint: tuple[str, str]
    datastore: DatastoreConfig
    recorded: str = field(default="", compare=False)
    addresses: tuple[str, ...] = ()  # those of the endpoint, which may be gone by the time of the replay
    uids: tuple[str, ...] = ()  # of the endpoint's record, when another one that is there is not meant; (): any

    @property
    def file_name(self) -> str:
        return intent_file(self.network, self.container_id, self.ifname)


def intent_file(network: str, container_id: str, ifname: str) -> str:
    """The file name for an attachment: there is at most one."""
    return sha1_hex(f"{network}/{container_id}/{ifname}") + ".json"


def plan_intent(
    attachment: Attachment,
    datastore: DatastoreConfig,
    *,
    recorded: str = "",
    addresses: Collection[Address] = (),
    uids: Collection[str] = (),
) -> Intent:
    """Everything an attachment may hold in the datastore."""
    key = attachment.endpoint_key
    return Intent(
        network=attachment.network,
        container_id=attachment.container_id,
        ifname=attachment.ifname,
        handle_ids=attachment.handle_ids,
        endpoint=(key.namespace, key.name),
        datastore=datastore,
        recorded=recorded,
        addresses=tuple(sorted(map(str, addresses))),
        uids=tuple(uids),
    )


def directory(state_dir: str) -> str:
    return f"{state_dir}/cni/pending-del"


def record_intent(files: Files, state_dir: str, intent: Intent) -> None:
    """Make the intent durable; what is owed of the attachment already is owed on. Raises OSError."""
    from dataclasses import asdict, replace  # the import takes 5 ms

    files.make_directory(directory(state_dir))
    before = _read_if_possible(files, state_dir, intent.file_name)
    if before is not None:
        addresses = tuple(sorted({*before.addresses, *intent.addresses}))
        uids = (*before.uids, *intent.uids) if before.uids and intent.uids else ()
        intent = replace(intent, addresses=addresses, uids=uids)
    document = {"format": FORMAT, **asdict(intent)}
    data = json.dumps(document, separators=(",", ":")).encode()
    files.write_atomic(f"{directory(state_dir)}/{intent.file_name}", data, 0o600)


def remove_intent(files: Files, state_dir: str, intent_file: str) -> None:
    """Remove a record, and any temporary file that a dead writer left; absent is success. Raises OSError.

    The caller holds the attachment's lock, so nobody is writing it now.
    """
    for name in files.names(directory(state_dir)):
        if name == intent_file or (name.startswith(f".{intent_file}.") and name.endswith((".new", ".reported"))):
            files.remove(f"{directory(state_dir)}/{name}")


def is_first_report(files: Files, state_dir: str, name: str) -> bool:
    """Whether it has not been reported yet that this file cannot be read; counts as reported from now on."""
    mark = f"{directory(state_dir)}/.{name}.reported"
    if files.exists(mark):
        return False
    try:
        files.append(mark, b"")
    except OSError:
        pass  # then it is reported again
    return True


def take_back(files: Files, state_dir: str, attachment: Attachment) -> None:
    """Cancel what an earlier DEL of this attachment still owes. Raises KernelError."""
    name = intent_file(attachment.network, attachment.container_id, attachment.ifname)
    try:
        remove_intent(files, state_dir, name)
    except OSError as e:
        raise KernelError(
            f"cannot remove {directory(state_dir)}/{name}, which says that this attachment is to be released: {e}",
            errno=e.errno or 0,
        ) from e


def read_own(files: Files, state_dir: str, attachment: Attachment) -> Intent | None:
    """What is owed of this attachment, as far as it can be read."""
    return _read_if_possible(
        files, state_dir, intent_file(attachment.network, attachment.container_id, attachment.ifname)
    )


def _read_if_possible(files: Files, state_dir: str, name: str) -> Intent | None:
    if not files.exists(f"{directory(state_dir)}/{name}"):
        return None
    try:
        return read_intent(files, state_dir, name)
    except (OSError, CalicoError):
        return None


def read_intents(files: Files, state_dir: str, *, after: str = "") -> Iterator[tuple[str, Intent | str]]:
    """(file name, record) of every owed release; (file name, what is wrong) for one that cannot be read.

    Sorted by name, starting after ``after`` and wrapping around.
    """
    names = files.names(directory(state_dir))
    for name in [name for name in names if name > after] + [name for name in names if name <= after]:
        if not name.endswith(".json") or name.startswith("."):
            continue
        try:
            intent = read_intent(files, state_dir, name)
        except (OSError, CalicoError) as e:
            yield name, str(e)
            continue
        if intent is not None:  # otherwise another process has replayed it
            yield name, intent


def read_intent(files: Files, state_dir: str, name: str) -> Intent | None:
    """One recorded release, None if there is none. Raises OSError, DecodeFailure."""
    try:
        return _parse(json.loads(files.read_bytes(f"{directory(state_dir)}/{name}")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise DecodeFailure(f"cannot read {directory(state_dir)}/{name}: {type(e).__name__}: {e}") from e


def _parse(document: Mapping[str, Any]) -> Intent:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r} is not {FORMAT}: written by another release")
    document = {"addresses": (), "uids": (), **document}  # earlier releases did not record them
    values = {name: document[name] for name in Intent.__match_args__}
    datastore = dict(values["datastore"])
    datastore["kubernetes"] = KubernetesAccess(**datastore["kubernetes"])
    datastore["etcd_endpoints"] = tuple(datastore["etcd_endpoints"])
    values["datastore"] = DatastoreConfig(**datastore)
    for name in ("handle_ids", "endpoint", "addresses", "uids"):
        values[name] = tuple(values[name])
    for address in values["addresses"]:
        ip_address(address)
    parse_endpoint_name(values["endpoint"][1])
    return Intent(**values)
