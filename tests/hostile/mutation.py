"""PURE: one change in a document: whatever stays JSON reaches what is behind the parser of JSON.

Rule: chance comes in as an argument; a change puts a value that is nasty, is elsewhere in the document, or is made by
``other`` of a text, in the place of any value, or takes it away, repeats it, or renames it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        65535,
        65536,
        2**31,
        2**32,
        2**63,
        2**64,
        10**400,
        1e308,
        0.5,
        "",
        [],
        {},
        [[]],
        [None],
    ),
    *(
        "\0",
        "\n",
        "\x1b[2J",
        "\ud800",
        "é",
        "\u202e",
        "%s%n",
        "..",
        "/",
        "a" * 300,
        "9" * 5000,
        "-1",
        "0x10",
        "1e999",
        "NaN",
    ),
    *("10.0.0.1", "10.0.0.0/99", "10.0.0.1/8", "0.0.0.0/0", "::/0", "::ffff:1.2.3.4", "fe80::1%eth0", "fe80::1%\n/64"),
    *(
        "224.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
        "TCP",
        "ICMP",
        "255",
        "0",
        "80:90",
        "90:80",
        "http",
        "Allow",
        "Deny",
        "Pass",
    ),
    *("all()", "global()", "!all()", "a in {", "(" * 200, "!" * 200, "a == 'b'", 'a == "\'"', "pcns.x == 'y'"),
    *("projectcalico.org/namespace", "projectcalico.org/orchestrator", "pcns.x", "kns.default", "10k", "1Gi", "٣"),
)


def changed(data: bytes, random: Random, other: Callable[[str], str] = str.upper) -> bytes:
    """The JSON document with one to three changes; bytes that are no object stay."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(document, (dict, list)):
        return data
    for _ in range(random.randint(1, 3)):
        places = _places(document)
        if not places:
            break
        _change(*random.choice(places), [holder[key] for holder, key in places], random, other)
    return json.dumps(document).encode()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(what holds it, key or index) of every value below the top."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            found.append((holder, key))
            if isinstance(value, (dict, list)):
                waiting.append(value)
    return found


def _change(holder: Any, key: Any, known: list[Any], random: Random, other: Callable[[str], str]) -> None:
    value, what = holder[key], random.randrange(6)
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = deepcopy(random.choice(known))
    elif what == 2 and isinstance(holder, list):
        holder += [deepcopy(value) for _ in range(random.choice((1, 2, 50)))]
    elif what == 2:
        name = random.choice([*(text for text in VALUES if isinstance(text, str)), *known])
        holder[str(name)] = holder.pop(key)
    elif what == 3 and isinstance(value, str):
        holder[key] = other(value)
    elif what == 4 and isinstance(value, list):
        value.append(deepcopy(random.choice(VALUES)))
    else:
        holder[key] = deepcopy(random.choice(VALUES))
