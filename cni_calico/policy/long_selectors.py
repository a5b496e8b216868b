"""PURE: selectors of thousands of terms, parsed and normalized in steps; short ones in one.

Rule: the result, and an error's text, are those of ``parse_selector`` and ``normal_form``. Long ones are not kept for
the next text that is equal: they would use up memory.
"""

from __future__ import annotations

from cni_calico.model.selector_forms import joined_form, negated_form, normal_form, parse_tree, selector_of
from cni_calico.model.selectors import ALL, Selector, SelectorParser, Tree
from cni_calico.policy.steps import Steps

LONG = 4096  # characters
_TOKENS, _TERMS = 200, 50  # of a step


def parsing_tree(text: str) -> Steps[Tree]:
    """As ``parse_tree``. Raises InvalidSelector."""
    if len(text) < LONG:
        return parse_tree(text)
    parser = _SteppingParser(text)
    for token in parser.read_tokens():
        parser.tokens.append(token)
        if not len(parser.tokens) % _TOKENS:
            yield
    tree = (yield from parser.parsing_or(0)) if parser.tokens else ALL
    return parser.parsed(tree).tree


def normalizing(tree: Tree) -> Steps[Selector]:
    """As ``normalized``."""
    normal = yield from _normalizing(tree)
    yield
    return selector_of(normal)


def _normalizing(tree: Tree) -> Steps[Tree]:
    kind = tree[0]
    if kind == "not":
        return negated_form((yield from _normalizing(tree[1])))
    if kind not in ("and", "or"):
        return normal_form(tree)
    forms: list[Tree] = []
    for part in tree[1]:
        forms.append((yield from _normalizing(part)))
        if not len(forms) % _TERMS:
            yield
    return joined_form(kind, forms)


class _SteppingParser(SelectorParser):
    def parsing_or(self, depth: int) -> Steps[Tree]:
        parts = [(yield from self._parsing_and(depth))]
        while self.accept("symbol", "||"):
            parts.append((yield from self._parsing_and(depth)))
            if not len(parts) % _TERMS:
                yield
        return parts[0] if len(parts) == 1 else ("or", tuple(parts))

    def _parsing_and(self, depth: int) -> Steps[Tree]:
        parts = [(yield from self._parsing_unary(depth))]
        while self.accept("symbol", "&&"):
            parts.append((yield from self._parsing_unary(depth)))
            if not len(parts) % _TERMS:
                yield
        return parts[0] if len(parts) == 1 else ("and", tuple(parts))

    def _parsing_unary(self, depth: int) -> Steps[Tree]:
        self.require_depth(depth)
        if self.accept("symbol", "!"):
            return ("not", (yield from self._parsing_unary(depth + 1)))
        if self.accept("symbol", "("):
            inner = yield from self.parsing_or(depth + 1)
            if not self.accept("symbol", ")"):
                raise self.error("')'")
            return inner
        return self.parse_unary(depth)
