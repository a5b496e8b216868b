"""PURE: Calico's selector language: from a text to a ``Selector`` that says whether a set of labels matches.

Rule: recursive descent over a token list, one function per precedence level; every error gives its position in the
text.

    or      := and ("||" and)*
    and     := unary ("&&" unary)*
    unary   := "!" unary | "(" or ")" | "all()" | "global()" | "has(" label ")" | label test
    test    := ("==" | "!=" | "contains" | "starts with" | "ends with") quoted | ("in" | "not in") "{" quoted, ... "}"

An absent label fails every test except "!=" and "not in". An empty text matches everything. Both all() and global()
match everything here; model/selector_forms.py gives them their meaning in a namespaceSelector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from cni_calico.errors import InvalidConfig

AskedPart = TypeVar("AskedPart")
Labels = Mapping[str, str]
LabelMatcher = Callable[[Labels], bool]
Tree = tuple[Any, ...]

# A tree: ("all",), ("global",), ("has", label), ("in", label, frozenset of values), ("contains" | "starts with" | "ends
# with", label, value), ("not", tree), ("and" | "or", (tree, tree, ...)). A separate type for each would add
# milliseconds of import to the call path.
ALL: Tree = ("all",)

_LABEL = r"[A-Za-z0-9_./-]{1,512}"
_TOKEN = re.compile(
    rf"""\s*(?:
      (?P<quoted>"[^"]*"|'[^']*')
    | (?P<call>(?:all|global)\(\s*\)|has\(\s*(?P<has>{_LABEL})\s*\))
    | (?P<symbol>==|!=|&&|\|\||[!(){{}},])
    | (?P<word>{_LABEL})
    )""",
    re.VERBOSE,
)
_DEPTH_MAX = 100  # levels of nesting: a user's selector must not exhaust Python's stack


_SHOWN_MAX = 120


def _brief(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "...")


class InvalidSelector(InvalidConfig):
    """A selector that cannot be parsed."""

    hint = "selectors look like: has(zone) && zone in {'a', 'b'} && !(role == 'db')"


class Selector:
    """A parsed selector; equal texts give the same object. ``tree`` is its meaning (see ``Tree``)."""

    __slots__ = ("__weakref__", "_match", "required", "text", "tree")

    def __init__(self, text: str, tree: Tree) -> None:
        self.text = text
        self.tree = tree
        self._match: LabelMatcher | None = None  # made when it is needed: most are only parts of others
        self.required: tuple[Any, ...] | None = None  # by ``selector_forms.requirements_of``

    def matches(self, labels: Labels) -> bool:
        if self._match is None:
            self._match = _matcher(self.tree)
        return self._match(labels)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """Raises InvalidSelector, whose text gives the position."""
    parser = SelectorParser(text)
    parser.tokens.extend(parser.read_tokens())
    return parser.parsed(parser.parse_or(0) if parser.tokens else ALL)


def _matcher(tree: Tree) -> LabelMatcher:
    kind = tree[0]
    if kind in ("all", "global"):
        return lambda labels: True
    if kind == "not":
        inner = _matcher(tree[1])
        return lambda labels: not inner(labels)
    if kind in ("and", "or"):
        if len(tree[1]) > _MANY:
            return _many_matcher(tree)
        parts = [_matcher(part) for part in tree[1]]
        if kind == "and":
            return lambda labels: all(part(labels) for part in parts)
        return _any_matcher(tree[1], parts)
    label = tree[1]
    if kind == "has":
        return lambda labels: label in labels
    value = tree[2]
    if kind == "in":
        return lambda labels: labels.get(label) in value
    if kind == "contains":
        return lambda labels: label in labels and value in labels[label]
    if kind == "starts with":
        return lambda labels: label in labels and labels[label].startswith(value)
    return lambda labels: label in labels and labels[label].endswith(value)


_FEW, _MANY = 8, 500


def _any_matcher(trees: tuple[Tree, ...], parts: list[LabelMatcher]) -> LabelMatcher:
    """Whether one of the parts matches; of many, those that need a value are asked only where a label has it."""
    if len(parts) <= _FEW:
        return lambda labels: any(part(labels) for part in parts)
    asked, others = _by_value(zip(trees, parts, strict=True))

    def matches(labels: Labels) -> bool:
        if any(part(labels) for pair in labels.items() for part in asked.get(pair, ())):
            return True
        return any(part(labels) for part in others)

    return matches


def _by_value(
    parts: Iterable[tuple[Tree, AskedPart]],
) -> tuple[dict[tuple[str, str], list[AskedPart]], list[AskedPart]]:
    """What stands for each part: by the labels' values that it needs, and where it needs none."""
    asked: dict[tuple[str, str], list[AskedPart]] = {}
    others: list[AskedPart] = []
    for tree, part in parts:
        needs = next((one for one in (tree[1] if tree[0] == "and" else (tree,)) if one[0] == "in"), None)
        if needs is None:
            others.append(part)
        else:
            for value in needs[2]:
                asked.setdefault((needs[1], value), []).append(part)
    return asked, others


def _many_matcher(tree: Tree) -> LabelMatcher:
    """Without a matcher for each part, which would take longer to make than they are in use."""
    if tree[0] == "and":
        return lambda labels: holds(tree, labels)
    asked, others = _by_value((part, part) for part in tree[1])

    def matches(labels: Labels) -> bool:
        if any(holds(part, labels) for pair in labels.items() for part in asked.get(pair, ())):
            return True
        return any(holds(part, labels) for part in others)

    return matches


def holds(tree: Tree, labels: Labels) -> bool:
    """Whether the labels match, asked only once or a few times."""
    kind = tree[0]
    if kind == "not":
        return not holds(tree[1], labels)
    if kind == "and":
        return all(holds(part, labels) for part in tree[1])
    if kind == "or":
        return any(holds(part, labels) for part in tree[1])
    return _matcher(tree)(labels)


class SelectorParser:
    """``tokens``, which the caller reads first, are (kind, text, position); ``at`` is the next one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        self.at = 0

    def parsed(self, tree: Tree) -> Selector:
        if self.at < len(self.tokens):
            raise self.error("&&, || or the end")
        return Selector(self.text, tree)

    def read_tokens(self) -> Iterator[tuple[str, str, int]]:
        at, end = 0, len(self.text.rstrip())
        while at < end:
            found = _TOKEN.match(self.text, at)
            if found is None:
                start = at + len(self.text[at:]) - len(self.text[at:].lstrip())
                quote = self.text[start] in "\"'"
                what = "the closing quote of a text" if quote else "a label, an operator or a quoted text"
                raise self._error_at(start, what)
            label = found.group("has")
            kind = "has" if label else found.lastgroup or ""
            yield kind, label or found.group(kind), found.end() - len(found.group().lstrip())
            at = found.end()

    def _error_at(self, position: int, expected: str) -> InvalidSelector:
        got = self.text[position : position + 20].rstrip()
        return InvalidSelector(
            f"cannot parse selector {_brief(self.text)}: expected {expected} at position {position}, "
            + (f"got {got!r}" if got else "got the end")
        )

    def error(self, expected: str) -> InvalidSelector:
        position = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.text.rstrip())
        return self._error_at(position, expected)

    def accept(self, kind: str, *texts: str) -> str | None:
        """The next token's text if it matches; it is then consumed."""
        if self.at < len(self.tokens):
            found, text, _ = self.tokens[self.at]
            if found == kind and (not texts or text in texts):
                self.at += 1
                return text
        return None

    def parse_or(self, depth: int) -> Tree:
        parts = [self.parse_and(depth)]
        while self.accept("symbol", "||"):
            parts.append(self.parse_and(depth))
        return parts[0] if len(parts) == 1 else ("or", tuple(parts))

    def parse_and(self, depth: int) -> Tree:
        parts = [self.parse_unary(depth)]
        while self.accept("symbol", "&&"):
            parts.append(self.parse_unary(depth))
        return parts[0] if len(parts) == 1 else ("and", tuple(parts))

    def require_depth(self, depth: int) -> None:
        if depth > _DEPTH_MAX:
            raise self.error(f"at most {_DEPTH_MAX} levels of nesting")

    def parse_unary(self, depth: int) -> Tree:
        self.require_depth(depth)
        if self.accept("symbol", "!"):
            return ("not", self.parse_unary(depth + 1))
        if self.accept("symbol", "("):
            inner = self.parse_or(depth + 1)
            if not self.accept("symbol", ")"):
                raise self.error("')'")
            return inner
        label = self.accept("has")
        if label is not None:
            return ("has", label)
        call = self.accept("call")
        if call:
            return ("global",) if call.startswith("global") else ALL
        label = self.accept("word")
        if label is None:
            raise self.error("a label, has(label), all(), global(), '!' or '('")
        return self.parse_test(label)

    def parse_test(self, label: str) -> Tree:
        operator = self.accept("symbol", "==", "!=") or self.accept("word", "contains", "in")
        if operator is None:
            operator = self.parse_two_words()
        if operator == "in":
            return ("in", label, self.parse_set())
        if operator == "not in":
            return ("not", ("in", label, self.parse_set()))
        value = self.parse_quoted()
        if operator in ("==", "!="):
            equal = ("in", label, frozenset((value,)))
            return equal if operator == "==" else ("not", equal)
        return (operator, label, value)

    def parse_two_words(self) -> str:
        joined = self.accept("word", "notin", "startswith", "endswith")
        if joined:
            return {"notin": "not in", "startswith": "starts with", "endswith": "ends with"}[joined]
        start = self.at
        first = self.accept("word", "not", "starts", "ends")
        if first and self.accept("word", "in" if first == "not" else "with"):
            return "not in" if first == "not" else f"{first} with"
        self.at = start
        raise self.error("==, !=, in, not in, contains, starts with or ends with")

    def parse_quoted(self) -> str:
        quoted = self.accept("quoted")
        if quoted is None:
            raise self.error("a quoted text")
        return quoted[1:-1]

    def parse_set(self) -> frozenset[str]:
        if not self.accept("symbol", "{"):
            raise self.error("'{'")
        values = []
        while not self.accept("symbol", "}"):
            values.append(self.parse_quoted())
            if not self.accept("symbol", ","):
                if not self.accept("symbol", "}"):
                    raise self.error("',' or '}'")
                break
        return frozenset(values)
