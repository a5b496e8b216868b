"""What the runtime's libcni remembers of its ADDs, as a hint of whose an address is that says nothing of its owner.

Rule: it only ever keeps an address: a runtime may keep its results elsewhere, and a file may be damaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from cni_calico.cni.result import parse_result
from cni_calico.errors import InvalidConfig
from cni_calico.model.resources import Address

RESULTS = "/var/lib/cni/results"  # where libcni keeps what each ADD returned, until the DEL


def addresses_elsewhere(container_id: str, ifname: str) -> set[Address]:
    """The addresses of the container's other interfaces, in any network."""
    found: set[Address] = set()
    for document in _read_results(f"-{container_id}-"):
        if document.get("containerId") == container_id and document.get("ifName") != ifname:
            with suppress(AttributeError):
                found |= addresses_of(document.get("result"))
    return found


def containers_of_other_networks(network: str) -> set[str]:
    """The containers that have an interface in another network: a handle that names no network may be theirs."""
    return {str(one.get("containerId")) for one in _read_results() if one.get("networkName") != network}


def addresses_of(result: Mapping[str, object] | None) -> set[Address]:
    """Those of an ADD's result; none if it is wrong."""
    try:
        return {ip.address.ip for ip in parse_result(result or {}).ips}
    except InvalidConfig:
        return set()


def _read_results(part: str = "") -> Iterator[Mapping[str, Any]]:
    """The documents in the files with this part in their names."""
    import json

    for name in os.listdir(RESULTS) if os.path.isdir(RESULTS) else ():
        if part not in name:
            continue
        document = None
        with suppress(OSError, ValueError), open(f"{RESULTS}/{name}", "rb") as file:
            document = json.loads(file.read())
        if isinstance(document, dict):
            yield document
