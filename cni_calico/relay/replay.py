"""Reads, from the API server, changes from before this relay's own history, for clients that come from another relay.

Rule: the answer is complete or there is none. The last event or bookmark of a watch shows how far the watch has come;
the API server sends a bookmark two seconds before it ends a watch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cni_calico.datastore.http import Lost
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.relayed.served import order_of_version
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted, DatastoreUnavailable

# clients wait for the first of these watches; in a short one, a busy server may not get round to its bookmark
WATCH_S = 3, 8
DEADLINE_S = 15.0
MOST_BYTES = 64 * 1024 * 1024

Events = list[tuple[str, Mapping[str, Any]]]


def read_changes(api: KubernetesAPI, path: str, since: int, until: int) -> Events:
    """The events after ``since`` up to ``until``. Raises Compacted if there is no complete answer, DatastoreError."""
    for watch_s in WATCH_S:
        found = _read_once(api, path, since, until, watch_s)
        if found is not None:
            return found
    raise Compacted(f"cannot watch {path} from {since}: the API server's watch ended before it reached {until}")


def _read_once(api: KubernetesAPI, path: str, since: int, until: int, watch_s: int) -> Events | None:
    """The events of one watch; None if it ended before it reached ``until``."""
    doing = f"watch {path} from {since}"
    url = f"{path}?watch=1&allowWatchBookmarks=true&resourceVersion={since}&timeoutSeconds={watch_s}"
    deadline = Deadline.after(DEADLINE_S)
    connection = api.stream(url, deadline, doing)
    found: Events = []
    rest, size = b"", 0
    try:
        for chunk in connection.chunks(lambda: deadline):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                size += len(line)
                event = json.loads(line)
                kind, obj = event["type"], event["object"]
                if kind == "ERROR":
                    raise Compacted(f"cannot {doing}: {obj.get('message') or 'it is too long ago'}")
                version = order_of_version((obj.get("metadata") or {}).get("resourceVersion"))
                if kind != "BOOKMARK" and since < version <= until:
                    found.append((kind, obj))
                if version >= until:
                    return found
            if size > MOST_BYTES:
                raise Compacted(f"cannot {doing}: the changes are larger than a new list")
    except Lost as e:
        raise DatastoreUnavailable(f"cannot {doing}: {e}") from e
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise DatastoreUnavailable(f"cannot {doing}: an event cannot be read") from e
    finally:
        connection.close()
    return None
