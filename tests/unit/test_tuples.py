"""The light NamedTuple behaves as typing's."""

from __future__ import annotations

import pickle
import typing

from cni_calico import tuples
from cni_calico.kernel.netlink import routes


class Light(tuples.NamedTuple):
    """What it is."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return self.a * 2


class Heavy(typing.NamedTuple):
    """What it is."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return self.a * 2


def test_same_as_typings() -> None:
    for kind in (Light, Heavy):
        record = kind(3)
        assert (record, record.b, record.double) == ((3, "x"), "x", 6)
        assert record._replace(b="y") == (3, "y")
        assert repr(record) == f"{kind.__name__}(a=3, b='x')"
        assert (kind.__doc__, kind.__module__, kind._fields) == ("What it is.", __name__, ("a", "b"))


def test_records_can_be_pickled() -> None:
    import ipaddress

    route = routes.Route(ipaddress.ip_network("10.0.0.0/8"), 5)
    assert pickle.loads(pickle.dumps(route)) == route
