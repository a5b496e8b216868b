"""``calicoctl datastore check`` as a document."""

from __future__ import annotations

import json
import sqlite3


def test_check_as_a_document(calicoctl):
    calicoctl.ok("ipam", "configure", "--strict-affinity=false")
    found = json.loads(calicoctl.ok("datastore", "check", "-o", "json"))
    assert found["problems"] == [] and found["datastore"].endswith("datastore.db")
    with sqlite3.connect(found["datastore"]) as damaged:
        damaged.execute("UPDATE change SET value = 'x'")
    damaged.close()
    done = calicoctl("datastore", "check", "-o", "json")
    assert done.code == 1 and "salvage" in done.err
    assert json.loads(done.out)["problems"] == done_in_words(calicoctl)


def done_in_words(calicoctl):
    done = calicoctl("datastore", "check")
    assert done.code == 1
    return [line.strip() for line in done.err.splitlines() if line.startswith("  ")]
