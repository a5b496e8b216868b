"""Removes the connections of whoever had an address before, so that no packet of theirs reaches its next owner.

Rule: the agent lists the addresses of its workloads in a file, and takes one out only once its connections are removed
(nodeagent/policing/enforce/departures.py). An address that has just been assigned and is still there is one whose
connections it has not removed yet, so that is done before packets can reach the new owner. Any other address costs a
look into that file; where no policies are in force it names none, and where no agent enforces any it does not exist.
One that cannot be read fails the call, because any address could be in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.deadline import Deadline
from cni_calico.directories import POLICED_ADDRESSES
from cni_calico.errors import CalicoError, KernelError
from cni_calico.model.resources import Address
from cni_calico.plugin.call.services import Services


def remove_former_connections(addresses: Iterable[Address], services: Services, deadline: Deadline) -> None:
    """For addresses that nobody has yet, in the host's network namespace. Raises KernelError: the addresses must not
    be used then.
    """
    wanted, path = tuple(addresses), f"{services.run_dir}/{POLICED_ADDRESSES}"
    if not wanted:
        return
    try:
        listed = services.files.read_bytes(path).split()
    except FileNotFoundError:
        return  # no agent enforces policies here
    except OSError as e:
        raise KernelError(
            f"cannot use {', '.join(map(str, wanted))}: {path} cannot be read: {e.strerror or e}; it says whose former "
            "connections are still open",
            details="make the file readable for root, or restart calico-node, which writes it anew",
            errno=e.errno or 0,
        ) from e
    former = [address for address in wanted if str(address).encode() in listed]
    if not former:
        return
    from cni_calico.kernel.netlink.conntrack import remove_entries, remove_listed
    from cni_calico.kernel.netlink.nfnetlink import Nfnetlink

    shown = ", ".join(map(str, former))
    try:
        with Nfnetlink() as netlink:
            left = [each for each in (a.packed for a in former) if not remove_entries(netlink, each, deadline)]
            if left:
                remove_listed(netlink, left, deadline)
    except CalicoError as e:
        raise KernelError(
            f"cannot use {shown}: connections of its former owner are still open, and cannot be removed: {e.message}",
            errno=e.errno if isinstance(e, KernelError) else 0,
        ) from e
    services.log.info(f"removed the connections of the former owner of {shown}")
