"""PURE: the part of Go's templates that ``get -o go-template=...`` needs.

Rule: text, {{.field.path}}, {{"text"}}, {{range}}, {{if}}, {{else}}, {{end}} and {{join .list ","}}; anything else is
an error that names it. Fields are found as the documents spell them or as Go does (.ObjectMeta.Name, .Spec.CIDR).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_calico.errors import InvalidConfig

_ACTION = re.compile(
    r"\{\{(?P<left>- )?\s*(?P<action>(?:\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^\"`}])*?)\s*(?P<right> -)?\}\}", re.DOTALL
)
_WORD = re.compile(r"\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^\s\"`]+")
_FIELD = re.compile(r"\.|(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_NESTED = (
    "a template is given a list of resources, or for kinds without names a list of lists: "
    "{{range .}}{{range .items}}{{.metadata.name}} {{end}}{{end}}"
)
_EMBEDDED = {"objectmeta": "metadata", "listmeta": "metadata"}


@dataclass(frozen=True, slots=True)
class _TemplateAction:
    """A range or an if with its two bodies, or a value to print; ``words`` are the words of its action."""

    words: Sequence[str]
    body: list[_TemplateAction | str] = field(default_factory=list)
    otherwise: list[_TemplateAction | str] = field(default_factory=list)


def render_template(text: str, value: Any) -> str:
    """Raises InvalidConfig if it is not a template, or uses more than this subset."""
    return "".join(_run(_parse(text), value))


def _parse(text: str) -> list[_TemplateAction | str]:
    top: list[_TemplateAction | str] = []
    open_blocks: list[
        tuple[_TemplateAction, list[_TemplateAction | str]]
    ] = []  # and where to continue after its {{end}}
    into = top
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        _append_text(into, text[at : match.start()], left=trim, right=bool(match["left"]))
        at, trim = match.end(), bool(match["right"])
        words = _WORD.findall(match["action"])
        if not words or match["action"].startswith("/*"):
            continue
        if words[0] in ("range", "if"):
            if len(words) != 2:
                raise _unsupported(match["action"])
            block = _TemplateAction(words)
            into.append(block)
            open_blocks.append((block, into))
            into = block.body
        elif words == ["else"] and open_blocks and into is open_blocks[-1][0].body:
            into = open_blocks[-1][0].otherwise
        elif words == ["end"] and open_blocks:
            _, into = open_blocks.pop()
        else:
            into.append(_TemplateAction(_require_value(words, match["action"])))
    _append_text(into, text[at:], left=trim, right=False)
    if open_blocks:
        raise InvalidConfig(f"cannot read template: {{{{{' '.join(open_blocks[-1][0].words)}}}}} has no {{{{end}}}}")
    return top


def _append_text(into: list[_TemplateAction | str], text: str, *, left: bool, right: bool) -> None:
    if "{{" in text or "}}" in text:
        raise _unsupported(text.strip())
    text = text.lstrip() if left else text
    text = text.rstrip() if right else text
    if text:
        into.append(text)


def _require_value(words: Sequence[str], action: str) -> Sequence[str]:
    is_join = words[0] == "join" and len(words) == 3
    if not is_join and len(words) != 1:
        raise _unsupported(action)
    for word in words[1:] if is_join else words:
        if not _FIELD.fullmatch(word) and word[0] not in '"`':
            raise _unsupported(action)
    return words


def _unsupported(action: str) -> InvalidConfig:
    return InvalidConfig(
        f"cannot use template: {action!r} is not supported",
        details='known are {{.field}}, {{range}}, {{if}}, {{else}}, {{end}}, {{join .list ","}} and quoted texts',
    )


def _run(blocks: Iterable[_TemplateAction | str], value: Any) -> Iterable[str]:
    for block in blocks:
        if isinstance(block, str):
            yield block
            continue
        words = block.words
        if words[0] == "range":
            found = _value(words[1], value)
            inner = list(found.values()) if isinstance(found, Mapping) else list(found or ())
            for one in inner:
                yield from _run(block.body, one)
            if not inner:
                yield from _run(block.otherwise, value)
        elif words[0] == "if":
            yield from _run(block.body if _value(words[1], value) else block.otherwise, value)
        elif words[0] == "join":
            found = _value(words[1], value)
            yield str(_value(words[2], value)).join(_text(item) for item in found or ())
        else:
            yield _text(_value(words[0], value))


def _value(word: str, value: Any) -> Any:
    if word[0] == '"':
        try:
            return json.loads(word)
        except ValueError:
            raise _unsupported(word) from None
    if word[0] == "`":
        return word[1:-1]
    for name in word.split(".")[1:]:
        value = _field(value, name) if name else value
    return value


def _field(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidConfig(
            f"cannot use template: .{name} is used on a value that has no fields",
            details=_NESTED if isinstance(value, list) else "",
        )
    if name in value:
        return value[name]
    wanted = _EMBEDDED.get(name.lower(), name.lower())
    if wanted == "typemeta":
        return value
    for key, inner in value.items():
        if key.lower() == wanted:
            return inner
    metadata = value.get("metadata")
    return _field(metadata, name) if isinstance(metadata, Mapping) else None


def _text(value: Any) -> str:
    """A value as Go prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{_text(inner)}" for key, inner in sorted(value.items())) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(_text(inner) for inner in value) + "]"
    return str(value)
