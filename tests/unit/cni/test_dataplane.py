"""``dataplane_options`` as it may be written."""

from __future__ import annotations

import pytest

from cni_calico.cni.dataplane import ExternalDataplane, parse_dataplane
from cni_calico.cni.fields import JsonFields
from cni_calico.errors import InvalidConfig


def parse(options):
    return parse_dataplane(JsonFields(options, "dataplane_options."))


def test_all_texts_are_passed_on():
    options = {"type": "grpc", "socket": "unix:///run/vpp.sock", "a": "b", "number": 1, "list": ["x"], "null": None}
    passed = {"type": "grpc", "socket": "unix:///run/vpp.sock", "a": "b"}
    assert parse(options) == ExternalDataplane("/run/vpp.sock", passed)


@pytest.mark.parametrize("options", [{}, {"socket": "unix:///run/vpp.sock"}])
def test_without_a_type_it_is_the_kernel(options):
    assert parse(options) is None


@pytest.mark.parametrize("kind", ["dpdk", "GRPC", "", None, 7, True, ["grpc"], {}])
def test_another_type_is_named(kind):
    with pytest.raises(InvalidConfig) as failure:
        parse({"type": kind, "socket": "unix:///s"})
    assert failure.value.message == f"Invalid dataplane type: {kind}" and failure.value.code == 7


@pytest.mark.parametrize("socket", [None, ""])
def test_the_socket_is_required(socket):
    with pytest.raises(InvalidConfig, match=r"dataplane_options\.socket is missing"):
        parse({"type": "grpc", "socket": socket})


@pytest.mark.parametrize(
    "socket",
    [
        7,
        "/run/s",
        "unix://",
        "unix:///",
        "unix://run/s",
        "unix:/run/s",
        "tcp://1.2.3.4:5",
        "unix:///run/",
        "unix:///a\0",
        "unix:///" + "x" * 107,
    ],
)
def test_a_socket_that_cannot_be_one(socket):
    with pytest.raises(InvalidConfig, match=r"dataplane_options\.socket: expected"):
        parse({"type": "grpc", "socket": socket})


def test_the_longest_socket():
    assert parse({"type": "grpc", "socket": "unix:///" + "x" * 106}).socket == "/" + "x" * 106


@pytest.mark.parametrize("options", [{"a": "\ud800"}, {"\ud800": "a"}, {"socket": "unix:///\ud800"}])
def test_what_is_no_text(options):
    with pytest.raises(InvalidConfig, match="UTF-8"):
        parse({"type": "grpc", "socket": "unix:///s", **options})
