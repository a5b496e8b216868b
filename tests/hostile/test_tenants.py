"""What a tenant writes, changed where it stays JSON; and its work grows no faster than its length."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.decode import decode_record
from cni_calico.policy.nodes import SLICE
from tests.hostile.mutation import changed
from tests.hostile.targets import TARGETS
from tests.hostile.tenants import (
    CALICO_POLICY,
    KUBERNETES_POLICY,
    NETWORK_SET,
    POD,
    POD_ANNOTATIONS,
    SERVICE,
    SLICE_OBJECT,
    TENANTS,
)

DOCUMENTS = [name for name, (example, _) in TENANTS.items() if not isinstance(example, str)]
SOURCES = "cni.projectcalico.org/allowedSourcePrefixes"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_place(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**64))
    def attempt(seed: int) -> None:
        try:
            target.parse(changed(target.example, Random(seed)))
        except target.errors:
            pass

    attempt()


def with_many(example: Any, path: tuple[Any, ...], values: Callable[[int], Any], n: int) -> bytes:
    document = deepcopy(example)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = values(n)
    return json.dumps(document).encode()


def _networks(n: int) -> list[str]:
    return [f"10.{i // 256}.{i % 256}.0/24" for i in range(n)]


def _peers(n: int) -> list[Any]:
    return [{"podSelector": {"matchLabels": {f"l{i}": "v"}}} for i in range(n)]


RULES = ("spec", "ingress")
GROWING: dict[str, tuple[str, Any, tuple[Any, ...], Callable[[int], Any]]] = {
    "prefixes": ("a pod's annotations", POD_ANNOTATIONS, (SOURCES,), _networks),
    "labels": ("a pod", POD, ("metadata", "labels"), lambda n: {f"l{i}": "v" for i in range(n)}),
    "named ports": (
        "a pod",
        POD,
        ("spec", "containers"),
        lambda n: [{"ports": [{"name": f"p{i}", "containerPort": i + 1} for i in range(n)]}],
    ),
    "Kubernetes' peers": ("a Kubernetes policy", KUBERNETES_POLICY, (*RULES, 0, "from"), _peers),
    "Kubernetes' ports": (
        "a Kubernetes policy",
        KUBERNETES_POLICY,
        (*RULES, 0, "ports"),
        lambda n: [{"port": 2 * i + 1} for i in range(n)],
    ),
    "rules": (
        "a Calico policy",
        CALICO_POLICY,
        RULES,
        lambda n: [{"action": "Allow", "source": {"selector": f"a == 'v{i}'"}} for i in range(n)],
    ),
    "named ports of both sides": (
        "a Calico policy",
        CALICO_POLICY,
        RULES,
        lambda n: [
            {
                "action": "Allow",
                "protocol": "TCP",
                **{side: {"ports": [f"{side}{i}" for i in range(n)]} for side in ("source", "destination")},
            }
        ],
    ),
    "networks": ("a network set", NETWORK_SET, ("spec", "nets"), _networks),
    "addresses of a Service": ("a Service", SERVICE, ("spec", "externalIPs"), lambda n: ["192.0.2.1"] * n),
    "endpoints": (
        "an EndpointSlice",
        SLICE_OBJECT,
        ("endpoints",),
        lambda n: [{"addresses": [f"10.0.{i // 256}.{i % 256}"]} for i in range(n)],
    ),
}


def lines_run(parse: Callable[[bytes], object], data: bytes) -> int:
    """The work, in lines of Python."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        parse(data)
    except (*TARGETS["a Service"].errors,):
        pass
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_what_is_written(name: str) -> None:
    target, example, path, values = GROWING[name]
    parse = TARGETS[target].parse
    few, many = (lines_run(parse, with_many(example, path, values, n)) for n in (40, 160))
    assert many <= 5 * few, f"four times as long: from {few} to {many} lines"


@pytest.mark.parametrize("joined", [" && ", " || "])
def test_work_grows_with_a_selector(joined: str) -> None:
    def work(n: int) -> int:
        return lines_run(TARGETS["a selector's meaning"].parse, joined.join(f"l{i} == 'v'" for i in range(n)).encode())

    few, many = work(40), work(160)
    assert many <= 5 * few, f"four times as long: from {few} to {many} lines"


def test_the_ports_of_a_slice_do_not_multiply_without_bound() -> None:
    """A Service of 20,000 ports with 1,000 endpoints, in 600 KB, would be 20 million members of a set."""
    endpoints = [{"addresses": [f"10.0.{i // 256}.{i % 256}"]} for i in range(1000)]
    ports = [{"port": i + 1} for i in range(20000)]
    with pytest.raises(CorruptRecord, match="1000 addresses with 20000 ports"):
        decode_record(ResourceKey(SLICE, "s-1", "shop"), {**SLICE_OBJECT, "endpoints": endpoints, "ports": ports})
