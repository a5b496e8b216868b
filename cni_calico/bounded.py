"""Reads and parses files and texts of unknown size and shape within limits: manifests, patches, kubeconfigs.

Rule: time, size and nesting depth are all limited. Size is checked while reading, and depth before anything is built
from the text: the C parser of YAML recurses, and a text of 100,000 brackets would end the process.
"""

from __future__ import annotations

import errno
import json
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Any

from cni_calico.errors import InvalidConfig

MAX_DEPTH = 100
MAX_NODES = 5_000_000  # of a text after expanding its aliases
CONFIG_BYTES = 1 << 20
MANIFEST_BYTES = 64 << 20
REPORT_BYTES = 256 << 20  # some 800,000 addresses
EXPORT_BYTES = 2 << 30
_CHUNK = 1 << 20


class OutOfBounds(InvalidConfig):
    """A text or file that is too large or nested too deeply for its purpose."""


def read_bytes(path: str, *, limit: int, timeout_s: float = 10.0) -> bytes:
    """The content of a file, a pipe or a device, at most ``limit`` bytes. Raises OSError, OutOfBounds.

    Never blocks in open(); a pipe that nobody writes to within ``timeout_s`` is an OSError (ETIMEDOUT).
    """
    until = time.monotonic() + timeout_s
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    parts: list[bytes] = []
    size = 0
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN | select.POLLHUP)
        while True:
            # for a pipe without a writer read() reports the end; poll() waits for the first writer
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise OSError(errno.ETIMEDOUT, f"nothing to read within {timeout_s:g} s")
            try:
                part = os.read(fd, min(_CHUNK, limit + 1 - size))
            except BlockingIOError:
                continue
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise OutOfBounds(f"cannot read {path}: it is larger than {_shown_size(limit)}")
    finally:
        os.close(fd)


def read_text(path: str, *, limit: int, timeout_s: float = 10.0) -> str:
    """The same, as text. Raises OSError, OutOfBounds, UnicodeDecodeError."""
    return read_bytes(path, limit=limit, timeout_s=timeout_s).decode("utf-8-sig")


def require_size(text: str | bytes, source: str, *, limit: int) -> None:
    """Raises OutOfBounds; in a text each character counts as one."""
    if len(text) > limit:
        raise OutOfBounds(f"cannot read {source}: it is larger than {_shown_size(limit)}")


def _shown_size(limit: int) -> str:
    return f"{limit >> 20} MiB"


# -- parsing ----------------------------------------------------------------------------------------------------------


def parse_json(text: str | bytes, source: str, make: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse JSON; ``make`` turns the pairs of each object into a value.

    Raises ValueError if it is not JSON, OutOfBounds if it is nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=make)
    except RecursionError:
        raise _too_deep(source) from None
    require_depth(value, source)
    return value


def require_depth(value: Any, source: str) -> None:
    """Raises OutOfBounds for lists and objects nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise _too_deep(source)


def _inside(value: Any) -> Iterable[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (inner for inner in found if isinstance(inner, (dict, list)))


def parse_yaml(text: str | bytes, source: str, loader: Any = None) -> list[Any]:
    """The documents of a YAML stream; ``loader`` is a safe loader class. Raises yaml.YAMLError, OutOfBounds."""
    import yaml

    loader = loader or getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    _require_yaml_bounds(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), source)
    return list(yaml.load_all(text, Loader=loader))


def _require_yaml_bounds(events: Iterable[Any], source: str) -> None:
    """Check the depth, and the number of nodes after replacing every alias by what it stands for."""
    import yaml

    sizes: dict[str, int] = {}  # by anchor
    begun: list[tuple[str | None, int]] = []  # (anchor, nodes before it)
    nodes = 0
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in begun):
                raise OutOfBounds(f"cannot read {source}: {event.anchor} is an alias of something that contains it")
            nodes += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, nodes))
            nodes += 1
            if len(begun) > MAX_DEPTH:
                raise _too_deep(source)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor:
                sizes[anchor] = nodes - before
        if nodes > MAX_NODES:
            raise OutOfBounds(f"cannot read {source}: it has more than {MAX_NODES} values, aliases written out")


def _too_deep(source: str) -> OutOfBounds:
    return OutOfBounds(f"cannot read {source}: it is nested more than {MAX_DEPTH} levels deep")
