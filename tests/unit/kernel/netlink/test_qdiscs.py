"""Our bytes about queueing disciplines, as pyroute2 reads them and as we do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import qdiscs
from cni_calico.kernel.netlink.wire import HEADER, Request
from cni_calico.model.host import TokenBucket

U32 = st.integers(1, 2**32 - 1)
BUCKETS = st.builds(TokenBucket, st.integers(1, 2**48), U32, U32) | st.builds(
    TokenBucket, st.integers(1, 2**48), U32, U32, st.integers(1, 2**48), U32
)


def read(request: Request) -> Any:
    header = HEADER.pack(HEADER.size + len(request.body), request.kind, request.flags, 1, 0)
    message = tcmsg(header + request.body)
    message.decode()
    return message


def test_a_bucket_as_pyroute2_reads_it() -> None:
    message = read(qdiscs.set_bucket(7, "cali1", TokenBucket(1000, 70000, 5, 2000, 6)))
    assert (message["index"], message["handle"], message["parent"]) == (7, 0x10000, 0xFFFFFFFF)
    assert message.get_attr("TCA_KIND") == "tbf"
    found = message.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
    assert [found[name] for name in ("rate", "limit", "buffer", "peak", "mtu")] == [1000, 70000, 5, 2000, 6]


def test_a_redirect_as_pyroute2_reads_it() -> None:
    message = read(qdiscs.add_redirect(7, "cali1", 12))
    assert (message["parent"], message["info"]) == (0xFFFF0000, 1 << 16 | 0x0300)
    options = message.get_attr("TCA_OPTIONS")
    [key] = options.get_attr("TCA_U32_SEL")["keys"]
    assert (key["key_mask"], key["key_val"]) == (0, 0) and options.get_attr("TCA_U32_CLASSID") == 0x10001
    action = options.get_attr("TCA_U32_ACT").get_attr("TCA_ACT_PRIO_1")
    assert action.get_attr("TCA_ACT_KIND") == "mirred"
    parameters = action.get_attr("TCA_ACT_OPTIONS").get_attr("TCA_MIRRED_PARMS")
    assert (parameters["eaction"], parameters["action"], parameters["ifindex"]) == (1, 4, 12)


@given(BUCKETS)
def test_a_bucket_comes_back(bucket: TokenBucket) -> None:
    """The kernel answers a list with what it was told."""
    assert qdiscs.decode_qdisc(qdiscs.set_bucket(7, "cali1", bucket).body) == (7, "tbf", qdiscs.ROOT, bucket)


def test_a_redirect_comes_back() -> None:
    redirect = qdiscs.decode_redirect(qdiscs.add_redirect(7, "cali1", 12).body)
    assert redirect is not None and redirect.to == 12 and redirect.info >> 16 == 1
    assert qdiscs.decode_redirect(qdiscs.add_ingress(7, "cali1").body) is None


@given(st.binary(max_size=120), st.booleans())
def test_whatever_comes_back(payload: bytes, is_tbf: bool) -> None:
    head = bytes(20) + b"\x08\0\x01\0tbf\0" if is_tbf else b""
    for decode in (qdiscs.decode_qdisc, qdiscs.decode_redirect):
        try:
            decode(head + payload)
        except KernelError:
            pass


def test_a_bucket_of_another_size() -> None:
    request = qdiscs.set_bucket(7, "cali1", TokenBucket(1, 1, 1))
    with pytest.raises(KernelError, match="cannot decode"):
        qdiscs.decode_qdisc(request.body[:-4])
