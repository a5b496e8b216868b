"""PURE: kubectl's JSONPath templates: ``{range .items[*]}{.metadata.name} {end}``.

Rule: a library evaluates the paths (RFC 9535); this module adds what kubectl has in addition: text around braces,
``range``, names with escaped dots, and paths without ``$``. A path to nothing gives an empty text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_calico.errors import InvalidConfig

_QUOTED = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_ACTION = re.compile(rf"\{{((?:{_QUOTED}|[^{{}}\"'])*)\}}", re.DOTALL)
_TOKEN = re.compile(
    rf"(?P<quoted>{_QUOTED})|(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<field>\.\.?(?:\\.|[^\\.\[\](){}=!<>&|,\s'\"*@$?])+)|(?P<all>\.\.?\*)|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Loop:
    """``{range PATH}...{end}``"""

    path: str
    body: list[_Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PathExpression:
    text: str


_Piece = str | _PathExpression | _Loop


def render_jsonpath(template: str, value: Any) -> str:
    """Raises InvalidConfig if it is no template. A template without braces is one path."""
    return "".join(_run(_parse(template if "{" in template else f"{{{template}}}"), value))


def select_values(path: str, value: Any) -> list[Any]:
    """Everything that one path, such as ``.metadata.name``, selects. Raises InvalidConfig."""
    import jsonpath  # imported only if it is needed: that takes a while

    try:
        found: list[Any] = jsonpath.findall(_standard(path), value)
        return found
    except jsonpath.JSONPathError as e:
        raise InvalidConfig(f"cannot use JSONPath {path!r}: {str(e).splitlines()[0]}") from e


def text_of(values: Iterable[Any]) -> str:
    """As kubectl prints them: separated by spaces; objects and lists as JSON."""
    return " ".join(_text(value) for value in values)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _standard(path: str) -> str:
    """A path as the standard writes it: from ``$``, every name in brackets and quotes."""
    rest = path.lstrip()
    out = ["" if rest.startswith("$") else "$"]
    for match in _TOKEN.finditer(rest.removeprefix("@")):
        text = match[0]
        if match["field"]:
            dots = "" if not text.startswith("..") else ".."
            name = re.sub(r"\\(.)", r"\1", text.lstrip("."))
            out.append(f"{dots}[{json.dumps(name)}]")
        elif match["all"]:
            out.append(f"{text.removesuffix('*') if text == '..*' else ''}[*]")
        elif match["quoted"]:
            out.append(text.replace("\\.", "."))
        else:
            out.append(text)
    return "".join(out).rstrip()  # a space that belongs to a name is in quotes by now


def _parse(template: str) -> list[_Piece]:
    top: list[_Piece] = []
    loops: list[list[_Piece]] = []  # where to continue after the {end} of each open loop
    into, at = top, 0
    for match in _ACTION.finditer(template):
        _append_text(into, template[at : match.start()])
        at = match.end()
        words = _words(match[1])
        if words[:1] == ["range"] and len(words) == 2:
            loop = _Loop(words[1])
            into.append(loop)
            loops.append(into)
            into = loop.body
        elif words == ["end"] and loops:
            into = loops.pop()
        elif words and words[0] in ("range", "end"):
            raise InvalidConfig(f"cannot use JSONPath {{{match[1]}}}: {{range PATH}} and {{end}} belong together")
        else:
            into.extend(_unquoted(word) if word[0] in "\"'" else _PathExpression(word) for word in words)
    _append_text(into, template[at:])
    if loops:
        raise InvalidConfig("cannot use JSONPath: a {range} has no {end}")
    return top


def _append_text(into: list[_Piece], text: str) -> None:
    if "{" in text or "}" in text:
        raise InvalidConfig(f"cannot use JSONPath: a brace is not closed near {text.strip()!r}")
    if text:
        into.append(text)


def _words(action: str) -> list[str]:
    """The words of an action, separated by spaces that are neither in brackets nor in quotes."""
    words, depth, open_word = [""], 0, False
    for match in re.finditer(rf"{_QUOTED}|.", action, re.DOTALL):
        text = match[0]
        depth += text in "([" and len(text) == 1
        depth -= text in ")]" and len(text) == 1
        if text.isspace() and not depth:
            open_word = False
        elif open_word:
            words[-1] += text
        else:
            words.append(text)
            open_word = True
    return words[1:]


def _unquoted(word: str) -> str:
    inner = word[1:-1]
    try:
        text: str = json.loads('"' + (inner if word[0] == '"' else inner.replace('"', '\\"')) + '"', strict=False)
    except ValueError:
        raise InvalidConfig(f"cannot use JSONPath: {word} is not a text") from None
    return text


def _run(parts: Sequence[_Piece], value: Any) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _PathExpression):
            yield text_of(select_values(part.text, value))
        else:
            for item in select_values(part.path, value):
                yield from _run(part.body, item)
