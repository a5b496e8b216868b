"""PURE: requests about queueing disciplines and the filters on them, encoded by hand, and their answers decoded.

Rule: as in kernel/netlink/links.py. pyroute2 has no 64-bit rates for tbf. Layouts: linux/pkt_sched.h, pkt_cls.h,
tc_act/tc_mirred.h.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import NamedTuple

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_ECHO,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    Request,
    attribute,
    nested,
    text,
    u32,
)
from cni_calico.model.host import TokenBucket

QDISC_SET = faults.declare("netlink.qdisc-set")
QDISC_DELETE = faults.declare("netlink.qdisc-delete")
FILTER_ADD = faults.declare("netlink.filter-add")
FILTER_DELETE = faults.declare("netlink.filter-delete")

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
ROOT, INGRESS, INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000
FIRST_HANDLE, OTHER_HANDLE = 0x10000, 0x20000

_TCMSG = Struct("=BxxxiIII")  # family, interface, handle, parent, info
_KIND, _OPTIONS = 1, 2
_TBF_PARMS, _TBF_RATE64, _TBF_PRATE64 = 1, 4, 5
_RATE = "BBHhHI"  # cell log, link layer, overhead, cell alignment, least size, bytes per second
_TBF = Struct(f"={_RATE}{_RATE}III")  # rate, peak rate, limit (bytes), buffer and mtu (ticks)
_ETHERNET = 1
_RATE_MAX = 0xFFFFFFFF
_U32_CLASS, _U32_SELECTOR, _U32_ACTIONS = 1, 5, 7
# one key that every packet has: flags (terminal), shift, keys, padding, three offsets, two masks; mask, value, offsets
_EVERY_PACKET = Struct("=BBBxHHhhIIIii").pack(1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
_MIRRED_PARMS = 2
_MIRRED = Struct("=IIiiiiI")  # index, capabilities, action, references, bindings; what it does, the interface
_STOLEN, _REDIRECT_EGRESS = 4, 1
_PRIORITY = 1
_ALL_PROTOCOLS = int.from_bytes(b"\0\3", sys.byteorder)  # ETH_P_ALL in the network's order


class Qdisc(NamedTuple):
    """``bucket`` is None for any kind but tbf."""

    ifindex: int
    kind: str
    parent: int
    bucket: TokenBucket | None


class Redirect(NamedTuple):
    """A u32 filter; ``to`` is the index of the interface to which it redirects packets, 0: it does something else."""

    handle: int
    info: int
    to: int


def list_qdiscs() -> Request:
    return Request(RTM_GETQDISC, NLM_F_DUMP, _TCMSG.pack(0, 0, 0, 0, 0), "list queueing disciplines")


def get_qdisc(index: int, label: str, parent: int) -> Request:
    """Get the one at ROOT or INGRESS; the answer is ENOENT or EINVAL if there is none.

    Without being told to echo, kernels before 6.7 tell the answer to whoever listens to changes, and not who asked.
    """
    body = _TCMSG.pack(0, index, 0, parent, 0)
    return Request(RTM_GETQDISC, NLM_F_ECHO, body, f"read the queueing disciplines of interface {label}")


def set_bucket(index: int, label: str, bucket: TokenBucket, handle: int = FIRST_HANDLE) -> Request:
    """A token bucket as the interface's root; one that is there is changed in place if it has the same handle, or else
    replaced, with what it holds.
    """
    parameters = _TBF.pack(
        *(0, _ETHERNET, 0, 0, 0, min(bucket.rate, _RATE_MAX)),
        *(0, _ETHERNET, 0, 0, 0, min(bucket.peak, _RATE_MAX)),
        *(bucket.limit, bucket.buffer, bucket.mtu),
    )
    options = attribute(_TBF_PARMS, parameters)
    if bucket.rate > _RATE_MAX:
        options += attribute(_TBF_RATE64, bucket.rate.to_bytes(8, sys.byteorder))
    if bucket.peak > _RATE_MAX:
        options += attribute(_TBF_PRATE64, bucket.peak.to_bytes(8, sys.byteorder))
    body = _TCMSG.pack(0, index, handle, ROOT, 0) + text(_KIND, "tbf") + nested(_OPTIONS, options)
    doing = f"limit the bandwidth of interface {label}"
    return Request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, body, doing, QDISC_SET)


def add_ingress(index: int, label: str) -> Request:
    """The place for filters of what comes in from the interface; EEXIST if there is one."""
    body = _TCMSG.pack(0, index, INGRESS_HANDLE, INGRESS, 0) + text(_KIND, "ingress")
    doing = f"add the ingress qdisc to interface {label}"
    return Request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, body, doing, QDISC_SET)


def delete_qdisc(index: int, label: str, parent: int) -> Request:
    what = "ingress" if parent == INGRESS else "root"
    body = _TCMSG.pack(0, index, 0, parent, 0)
    return Request(RTM_DELQDISC, 0, body, f"remove the {what} qdisc of interface {label}", QDISC_DELETE)


def decode_qdisc(payload: bytes) -> Qdisc:
    """Raises KernelError for anything except an RTM_NEWQDISC payload."""
    index, _, parent, _, found = _decode(payload)
    kind = wire.name(found.get(_KIND))
    bucket = _decode_bucket(found.get(_OPTIONS, b"")) if kind == "tbf" else None
    return Qdisc(index, kind, parent, bucket)


def _decode_bucket(payload: bytes) -> TokenBucket | None:
    options = wire.attributes(payload)
    parameters = options.get(_TBF_PARMS, b"")
    if len(parameters) != _TBF.size:
        raise wire.malformed("a token bucket", f"{len(parameters)} bytes")
    *_, rate, _, _, _, _, _, peak, limit, buffer, mtu = _TBF.unpack(parameters)
    rate = int.from_bytes(options[_TBF_RATE64], sys.byteorder) if _TBF_RATE64 in options else rate
    peak = int.from_bytes(options[_TBF_PRATE64], sys.byteorder) if _TBF_PRATE64 in options else peak
    return TokenBucket(rate=rate, limit=limit, buffer=buffer, peak=peak, mtu=mtu if peak else 0)


def _decode(payload: bytes) -> tuple[int, int, int, int, dict[int, bytes]]:
    if len(payload) < _TCMSG.size:
        raise wire.malformed("a queueing discipline", f"{len(payload)} bytes")
    _, index, handle, parent, info = _TCMSG.unpack_from(payload)
    return index, handle, parent, info, wire.attributes(payload, _TCMSG.size)


# -- filters ----------------------------------------------------------------------------------------------------------


def list_filters(index: int, label: str) -> Request:
    body = _TCMSG.pack(0, index, 0, INGRESS_HANDLE, 0)
    return Request(RTM_GETTFILTER, NLM_F_DUMP, body, f"list the filters of interface {label}")


def add_redirect(index: int, label: str, to: int) -> Request:
    """Everything that comes in from the interface goes out through another one first."""
    action = nested(_OPTIONS, attribute(_MIRRED_PARMS, _MIRRED.pack(0, 0, _STOLEN, 0, 0, _REDIRECT_EGRESS, to)))
    actions = nested(_U32_ACTIONS, nested(1, text(_KIND, "mirred"), action))
    options = nested(_OPTIONS, u32(_U32_CLASS, FIRST_HANDLE | 1), attribute(_U32_SELECTOR, _EVERY_PACKET), actions)
    info = _PRIORITY << 16 | _ALL_PROTOCOLS
    body = _TCMSG.pack(0, index, 0, INGRESS_HANDLE, info) + text(_KIND, "u32") + options
    doing = f"redirect what comes in from interface {label}"
    return Request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body, doing, FILTER_ADD)


def delete_redirect(index: int, label: str, redirect: Redirect) -> Request:
    body = _TCMSG.pack(0, index, redirect.handle, INGRESS_HANDLE, redirect.info) + text(_KIND, "u32")
    return Request(RTM_DELTFILTER, 0, body, f"remove a filter of interface {label}", FILTER_DELETE)


def decode_redirect(payload: bytes) -> Redirect | None:
    """None for what is no u32 filter (its hash tables are listed, too). Raises KernelError."""
    _, handle, _, info, found = _decode(payload)
    options = wire.attributes(found.get(_OPTIONS, b""))
    if wire.name(found.get(_KIND)) != "u32" or _U32_SELECTOR not in options:
        return None
    to = 0
    for action in wire.list_elements(options.get(_U32_ACTIONS, b"")):
        parts = wire.attributes(action)
        parameters = wire.attributes(parts.get(_OPTIONS, b"")).get(_MIRRED_PARMS, b"")
        if wire.name(parts.get(_KIND)) == "mirred" and len(parameters) >= _MIRRED.size:
            to = _MIRRED.unpack_from(parameters)[-1]
    return Redirect(handle, info, to)
