"""Limits of bandwidth on interfaces: read, set, removed.

Rule: what an interface sends is limited by a tbf as its root; what comes in from it is sent through an interface of
kind ifb, which has such a tbf. A limit is changed in place, so that no packet of a flow is lost; except where a packet
that waits already could be larger than the new burst: it would never leave, and nothing behind it. Who asks about a few
interfaces is told of these only: lists of all take most of a node's time for one limit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from errno import EEXIST, EINVAL, ENODEV, ENOENT
from typing import Self

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import qdiscs
from cni_calico.kernel.netlink.links import (
    ListedLink,
    create_ifb,
    decode_listed,
    delete_link,
    get_link,
    list_links,
    set_link,
)
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.model.host import LinkShaping, TokenBucket

_OFFLOADED_BYTES = 0x10000 + 14  # of the largest packet that a stack hands over whole


class Shaper:
    """One look at the interfaces of this network namespace, and changes of them. For one thread."""

    def __init__(self, deadline: Deadline, only: Collection[str] | None = None) -> None:
        """``only``: nothing is known of other interfaces, None: all are looked at. Raises KernelError."""
        self._rtnl = Rtnl()
        self._deadline = deadline
        self._only = only
        try:
            listed = self._rtnl.dump(list_links(), deadline) if only is None else self._some(map(get_link, only))
            links = [decode_listed(payload) for payload in listed]
        except BaseException:
            self._rtnl.close()
            raise
        self._index = {link.name: link.ifindex for link in links}
        self._names = {link.ifindex: link.name for link in links}
        self._ready = {(link.name, link.mtu) for link in links if link.up}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rtnl.close()

    def read(self, filtered: Collection[str]) -> dict[str, LinkShaping]:
        """What shapes each interface that has a qdisc; redirects are read of those named. Raises KernelError."""
        roots: dict[str, TokenBucket] = {}
        ingress: dict[str, str] = {}
        for payload in self._list_qdiscs():
            qdisc = qdiscs.decode_qdisc(payload)
            name = self._names.get(qdisc.ifindex, "")
            if qdisc.parent == qdiscs.ROOT and qdisc.bucket is not None:
                roots[name] = qdisc.bucket
            elif qdisc.parent == qdiscs.INGRESS:
                ingress[name] = qdisc.kind
        found = {}
        for name in roots.keys() | ingress.keys():
            redirects = self._redirects(name) if name in filtered and ingress.get(name) == "ingress" else ()
            to = tuple(self._name(redirect.to) for redirect in redirects)
            found[name] = LinkShaping(roots.get(name), ingress.get(name, ""), to)
        return found

    def has(self, name: str) -> bool:
        return name in self._index

    def is_ready(self, name: str, mtu: int) -> bool:
        """Whether it is there and up, with this MTU."""
        return (name, mtu) in self._ready

    def limit(self, name: str, bucket: TokenBucket, former: TokenBucket | None) -> None:
        """``former``: what is there. Raises KernelError."""
        index = self._find(name)
        if former is not None and bucket.largest < min(former.largest, _OFFLOADED_BYTES):
            # twice, because only another handle replaces it, and upstream's agent knows the first one
            self._run(qdiscs.set_bucket(index, name, bucket, qdiscs.OTHER_HANDLE))
        self._run(qdiscs.set_bucket(index, name, bucket))

    def unlimit(self, name: str) -> None:
        """Raises KernelError."""
        self._run(qdiscs.delete_qdisc(self._find(name), name, qdiscs.ROOT), tolerated=(ENOENT, EINVAL))

    def make_device(self, name: str, mtu: int) -> None:
        """Make the interface of kind ifb, or give it this MTU. Raises KernelError."""
        if name in self._index:
            self._run(set_link(self._index[name], name, mtu=mtu, up=True))
        else:
            self._run(create_ifb(name, mtu))
            self._note(decode_listed(self._rtnl.one(get_link(name), self._deadline)))

    def remove_device(self, name: str) -> None:
        """Raises KernelError."""
        if name in self._index:
            index = self._index.pop(name)
            del self._names[index]
            self._run(delete_link(index, name), tolerated=(ENODEV,))

    def redirect(self, name: str, device: str) -> list[str]:
        """Send everything that comes in from the interface through ``device``, and nothing elsewhere. Returns the names
        of interfaces to which filters of others had sent it. Raises KernelError.
        """
        index, to = self._find(name), self._find(device)
        self._run(qdiscs.add_ingress(index, name), tolerated=(EEXIST,))
        there = self._redirects(name)
        if all(redirect.to != to for redirect in there):
            self._run(qdiscs.add_redirect(index, name, to))
        others = [redirect for redirect in there if redirect.to != to]
        names = {redirect.to: self._name(redirect.to) for redirect in others}
        for redirect in others:
            self._run(qdiscs.delete_redirect(index, name, redirect), tolerated=(ENOENT,))
        return [name for name in names.values() if name]

    def stop_redirecting(self, name: str) -> None:
        """Raises KernelError."""
        self._run(qdiscs.delete_qdisc(self._find(name), name, qdiscs.INGRESS), tolerated=(ENOENT, EINVAL))

    def _list_qdiscs(self) -> list[bytes]:
        if self._only is None:
            return self._rtnl.dump(qdiscs.list_qdiscs(), self._deadline)
        asked = [(index, name, at) for name, index in self._index.items() for at in (qdiscs.ROOT, qdiscs.INGRESS)]
        return self._some(qdiscs.get_qdisc(*each) for each in asked)

    def _some(self, requests: Iterable[Request]) -> list[bytes]:
        """The answers about what is there."""
        asked, found = list(requests), []
        for outcome in self._rtnl.submit(asked, self._deadline) if asked else ():
            if outcome.error is not None and outcome.error.errno not in (ENODEV, ENOENT, EINVAL):
                raise outcome.error
            found += outcome.replies
        return found

    def _name(self, index: int) -> str:
        """The name of any interface, "" if there is none."""
        if index not in self._names and self._only is not None and index:
            for link in map(decode_listed, self._some((get_link(index),))):
                self._note(link)
        return self._names.get(index, "")

    def _note(self, link: ListedLink) -> None:
        self._index[link.name], self._names[link.ifindex] = link.ifindex, link.name

    def _redirects(self, name: str) -> list[qdiscs.Redirect]:
        found = map(
            qdiscs.decode_redirect, self._rtnl.dump(qdiscs.list_filters(self._find(name), name), self._deadline)
        )
        return [redirect for redirect in found if redirect is not None]

    def _find(self, name: str) -> int:
        if name not in self._index:
            raise KernelError(f"cannot limit the bandwidth of {name}: it is gone", errno=ENODEV)
        return self._index[name]

    def _run(self, request: Request, tolerated: Collection[int] = ()) -> None:
        error = self._rtnl.submit((request,), self._deadline)[0].error
        if error is not None and error.errno not in tolerated:
            raise error
