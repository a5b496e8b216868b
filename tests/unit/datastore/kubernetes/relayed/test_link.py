"""Of an event that is long its follower gets the head only, if it asked for that."""

from __future__ import annotations

import json
from typing import Any

from cni_calico.datastore.kubernetes.heads import UNREAD
from cni_calico.datastore.kubernetes.relayed.link import Followed, _read_event

LINKED: Any = None


def line_of(path: str, length: int) -> bytes:
    obj = {"kind": "K", "apiVersion": "v", "metadata": {"name": "a", "resourceVersion": "7"}, "spec": "x" * length}
    return json.dumps({"path": path, "type": "ADDED", "object": obj}).encode()


def test_who_gets_heads() -> None:
    wanted = {"/late": Followed(LINKED, "/late", "1", 1000), "/whole": Followed(LINKED, "/whole", "1")}
    late, short = line_of("/late", 1000), line_of("/late", 10)
    head = _read_event(late, wanted)
    assert head[UNREAD] == late and "spec" not in head["object"] and head["object"]["metadata"]["name"] == "a"
    wanted["/late"].put(head, len(late))
    assert wanted["/late"].position == "7"  # where it goes on after a break
    for line in (short, line_of("/whole", 1000), line_of("/unknown", 1000)):
        assert _read_event(line, wanted) == json.loads(line)
