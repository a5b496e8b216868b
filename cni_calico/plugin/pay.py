"""Carries out owed releases once the datastore is back: by the next successful call, or by the agent.

Rule: an owed release is carried out as the DEL that recorded it would have been, but without the container's namespace:
under the attachment's lock, the interface first, then what the handle holds, and the file last. After a crash in
between everything is repeated, which does no harm. A release that fails stays recorded and does not hold up the others:
each round carries out only a few, and the next one begins after them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import islice

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import IpamSection, LogSection, NetConf
from cni_calico.cni.versions import CURRENT
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, DatastoreError, NotReady, RecordRefused
from cni_calico.model import names
from cni_calico.model.access import DatastoreConfig, is_same_datastore
from cni_calico.plugin import owed
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.delete import Removal

LOCK_NAME = "cni-replay.lock"  # in the run directory; only one process at a time carries out releases
IDLE_NAME = "cni-replay.idle"  # one per datastore; its time: when a round last found nothing owed to that one
LOCK_PATIENCE_S = 0.05
BATCH = 16
LOOKED_AT = 64  # files read in one round, whichever datastore they concern
IDLE_S = 5.0
AFTER_CALL_S = 1.0


@dataclass(slots=True)
class Payments:
    """How many releases were carried out, how many failed, and the one that was tried last."""

    done: int = 0
    kept: int = 0
    unreadable: int = 0
    last: str = ""


def pay_after(services: Services, config: DatastoreConfig) -> None:
    """Called when a call has just succeeded with this datastore: carry out what is owed to it, one process
    at a time.
    """
    lock = services.files.path(f"{services.run_dir}/{LOCK_NAME}")
    idle = _idle_path(services, config)
    if _was_idle(services, idle) or not services.files.names(owed.directory(services.state_dir)):
        return
    from cni_calico.kernel.lock import file_lock

    try:
        with file_lock(lock, Deadline.after(0)):
            deadline = Deadline.after(AFTER_CALL_S)
            # a random start, because nothing says where the last round ended; names are hexadecimal digests
            report = pay_owed(services, config, deadline, after=os.urandom(20).hex())
            if not report.done + report.kept:
                services.files.append(idle, b"")
                os.utime(services.files.path(idle))
    except (CalicoError, OSError):
        return  # another process is doing it


def _idle_path(services: Services, config: DatastoreConfig) -> str:
    """The file for this datastore only: a round for one network says nothing about what is owed to another
    datastore.
    """
    access = config.kubernetes
    place = (config.type, config.path, config.etcd_endpoints, config.etcd_discovery_srv)
    cluster = (access.api_root, access.kubeconfig, access.context)
    return f"{services.run_dir}/{IDLE_NAME}-{names.sha1_hex(repr((place, cluster)))}"


def _was_idle(services: Services, idle: str) -> bool:
    """Whether a round a moment ago found no release that this datastore is owed, only others' or unreadable ones."""
    try:
        return 0 <= time.time() - os.stat(services.files.path(idle)).st_mtime < IDLE_S
    except OSError:
        return False


def pay_owed(
    services: Services, config: DatastoreConfig, deadline: Deadline, *, limit: int = BATCH, after: str = ""
) -> Payments:
    """Try at most ``limit`` releases of the datastore that ``config`` reaches, starting after the name ``after``.

    The credentials are those of ``config``: those in a record may be old. Never raises CalicoError.
    """
    report = Payments(last=after)
    found = owed.read_all(services.files, services.state_dir, after=after)
    for name, release in islice(found, LOOKED_AT):
        if report.done + report.kept >= limit or deadline.expired():
            break
        report.last = name
        if isinstance(release, str):
            report.unreadable += 1
            if owed.is_first_report(services.files, services.state_dir, name):
                services.log.error(f"cannot read the owed release {name}: {release}; it is left in place")
            continue
        if not is_same_datastore(config, release.datastore):
            continue
        try:
            _pay(services, name, config, deadline)
            report.done += 1
        except (CalicoError, OSError) as e:
            report.kept += 1
            services.log.warning(f"the owed release {name} is kept: {e}")
            if isinstance(e, DatastoreError | NotReady) and not isinstance(e, CorruptRecord | RecordRefused):
                break  # the next release would meet the same datastore; a wrong record affects only itself
    return report


def _pay(services: Services, name: str, config: DatastoreConfig, deadline: Deadline) -> None:
    release = owed.read(services.files, services.state_dir, name)
    if release is None:
        return
    attachment = release.attachment
    patience = deadline.sooner(LOCK_PATIENCE_S)
    with (
        services.attachment_lock(attachment.label, patience),
        services.attachment_lock(attachment.veth_label, patience),
    ):
        if owed.read(services.files, services.state_dir, name) is None:
            return  # an ADD has cancelled it, or another process has carried it out
        ipam = IpamSection(type="calico-ipam")
        conf = NetConf(attachment.network, CURRENT, "calico", config, ipam, LogSection(), {})
        call = Call("DEL", attachment.container_id, ifname=attachment.ifname)
        task = Task(call, conf, services, services.datastore(config), deadline)
        Removal(task, attachment, paying=True).run(None)
        services.log.info(f"released what {attachment.shown} held, as recorded by an earlier DEL")
