"""``calico-docker -status``: what the driver holds for Docker on this host, from its files.

Rule: only reads, asks neither Docker nor the datastore, and so answers whatever is down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cni_calico.docker.documents import host_name
from cni_calico.docker.state import DockerEndpoint, DockerState

CLOSED, OPEN, OWED, PREPARED = "closed", "open", "to be removed", "prepared"
_HEAD = ("ENDPOINT", "CONTAINER", "NETWORK", "ADDRESSES", "INTERFACE", "STATE", "PORTS")


def render_status(node: str, state: DockerState, *, answers: bool) -> str:
    """PURE: a summary, a table of the endpoints, and what is not as it should be."""
    endpoints = sorted(state.endpoints.all(), key=lambda each: each.made_s)
    owed = sum(each.owed for each in endpoints) + sum(each.owed for each in state.addresses.all())
    lines = [
        f"node {node}: the driver {'answers' if answers else 'does not answer'}",
        f"networks {len(state.networks.all())}, endpoints {len(endpoints)}, addresses {len(state.addresses.all())}, "
        f"to be released {owed}",
    ]
    if endpoints:
        lines += _table([_HEAD, *(_row(each, _network(state, each)) for each in endpoints)])
    return "\n".join([*lines, *_problems(state, endpoints)]) + "\n"


def _row(endpoint: DockerEndpoint, network: str) -> tuple[str, ...]:
    return (
        endpoint.id[:12],
        endpoint.name or "-",
        network,
        ",".join(endpoint.addresses),
        host_name(endpoint.id),
        state_of(endpoint),
        ",".join(map(_port, endpoint.ports)) or "-",
    )


def state_of(endpoint: DockerEndpoint) -> str:
    """PURE: in a word or two."""
    if endpoint.owed:
        return OWED
    if not endpoint.sandbox:
        return PREPARED
    return CLOSED if endpoint.waits else OPEN


def _network(state: DockerState, endpoint: DockerEndpoint) -> str:
    held = state.networks.get(endpoint.network)
    return (held.name if held is not None else "") or endpoint.network[:12]


def _port(text: str) -> str:
    protocol, host, host_port, _, port = text.split(" ") if text.count(" ") == 4 else ("?", "*", "?", "", "?")
    return f"{'' if host == '*' else host + ':'}{host_port}->{port}/{protocol}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _problems(state: DockerState, endpoints: Sequence[DockerEndpoint]) -> Iterator[str]:
    for each in endpoints:
        if state_of(each) == CLOSED:
            why = "its policy is not known to be in force" if each.known else "whose it is is not known yet"
            yield f"endpoint {each.id[:12]} is closed: {why}"
        for text in each.left_out:
            yield f"endpoint {each.id[:12]}: {text}"
    for text in state.unreadable():
        yield f"not used, because it cannot be read: {text}"
