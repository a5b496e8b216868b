"""PURE: values as JSON and YAML, in upstream's form.

Rule: the machine-readable texts of every command come from here; YAML is imported when it is written.
"""

from __future__ import annotations

import json
from typing import Any


def render_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


class _Pieces(list[str]):
    """What libyaml takes for a stream of text."""

    encoding = None
    write = list.append


def render_yaml(value: Any) -> str:
    """YAML with sorted keys; repeated values are written in full instead of as anchors, which not every reader of
    manifests supports. ``value`` consists of JSON's types; raises RepresenterError for a scalar of another one.

    PyYAML's ``dump`` makes a node of each scalar and asks twice what it would be read as; here that is asked once for
    all that are equal, and libyaml, which knows the rules of quoting, gets the events: a quarter of the time.
    """
    if value is None:
        return "null\n"
    import yaml  # imported only if it is needed: that takes a while
    from yaml import events

    text: Any = _Pieces()
    dumper: Any = yaml.CSafeDumper(text, allow_unicode=True)
    emit, represent, resolve = dumper.emit, dumper.represent_data, dumper.resolve
    ends = events.MappingEndEvent(), events.SequenceEndEvent()
    mapping = events.MappingStartEvent(None, None, True, flow_style=False)
    sequence = events.SequenceStartEvent(None, None, True, flow_style=False)
    known: dict[tuple[type, Any], Any] = {}

    def scalar(one: Any) -> Any:
        if (event := known.get((one.__class__, one))) is not None:
            return event
        node = represent(one)
        implicit = tuple(
            resolve(yaml.ScalarNode, node.value, form) == node.tag for form in ((True, False), (False, True))
        )
        event = events.ScalarEvent(None, node.tag, implicit, node.value, style=node.style)
        if one.__class__ is not float:  # 0.0 equals -0.0
            known[one.__class__, one] = event
        return event

    def write(one: Any) -> None:
        if isinstance(one, dict):
            emit(mapping)
            for key in sorted(one):
                emit(scalar(key))
                write(one[key])
            emit(ends[0])
        elif isinstance(one, list | tuple):
            emit(sequence)
            for item in one:
                write(item)
            emit(ends[1])
        else:
            emit(scalar(one))

    try:
        dumper.open()
        emit(events.DocumentStartEvent(explicit=False))
        write(value)
        emit(events.DocumentEndEvent(explicit=False))
        dumper.close()
    finally:
        dumper.dispose()
    return "".join(text)
