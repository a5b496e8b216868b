"""Expands at build time what a module computes at every start: its dataclasses, and names that only a type checker
needs.

Rule: a class is expanded only if it is of the plain kind that is completely understood here, otherwise it stays as it
is; so the frozen module means what its source means, and costs less. For ``@dataclass(frozen=True, slots=True)`` Python
compiles seven functions and makes the class twice, 0.4 ms each time; importing ``dataclasses`` takes 5 ms, ``typing``
1.5. tests/unit/build/test_expand.py compares every class of the project with the dataclass it came from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

SHARED = "_expanded"  # the name under which a module finds cni_calico.expanded
KNOWN_OPTIONS = {"frozen", "slots", "order"}
KNOWN_FIELD_OPTIONS = {"default", "default_factory", "repr", "compare"}
# methods that a dataclass makes, calls or takes into account
SPECIAL = {f"__{name}__" for name in ("init", "post_init", "repr", "eq", "hash", "lt", "le", "gt", "ge", "setattr")}
SPECIAL |= {f"__{name}__" for name in ("delattr", "getstate", "setstate", "init_subclass", "class_getitem")}
# what typing's names may be if nobody checks types
UNTYPED = {"TYPE_CHECKING": "False", "Any": "object", "Protocol": "object"}
COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


@dataclass(frozen=True)
class Column:
    """A field: ``default`` and ``factory`` are expressions, "" if there is none."""

    name: str
    default: str = ""
    factory: str = ""
    shown: bool = True
    compared: bool = True


def expand(source: str) -> ast.Module:
    """The module with everything expanded that can be; line numbers are the source's."""
    tree = ast.parse(source)
    _drop_type_checking(tree)
    bases = {base.id for node in _classes(tree) for base in node.bases if isinstance(base, ast.Name)}
    for node in _classes(tree):
        if (options := _dataclass_options(node)) is not None:
            plain = node.name not in bases and _is_plain(node, options)
            columns = _columns(node) if plain else None
            if columns is not None:
                _write_out(node, options, columns)
    _replace_imports(tree)
    return ast.fix_missing_locations(tree)


# -- which classes ----------------------------------------------------------------------------------------------------


def _classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def _dataclass_options(node: ast.ClassDef) -> dict[str, bool] | None:
    """The options of ``@dataclass(...)``; None if the class is not a dataclass."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        name = call.func if call else decorator
        if isinstance(name, ast.Name) and name.id == "dataclass":
            keywords = call.keywords if call else []
            return {k.arg or "": isinstance(k.value, ast.Constant) and k.value.value is True for k in keywords}
    return None


def _is_plain(node: ast.ClassDef, options: dict[str, bool]) -> bool:
    """One decorator, slots, no base class, and no method that a dataclass would treat in a special way."""
    special = SPECIAL & {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
    return (
        len(node.decorator_list) == 1
        and options.get("slots", False)
        and options.keys() <= KNOWN_OPTIONS
        and not (node.bases or node.keywords or special)
    )


def _columns(node: ast.ClassDef) -> list[Column] | None:
    """The fields in order; None if one is of a kind not known here."""
    found = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            column = _column(item.target.id, item)
            if column is None:
                return None
            found.append(column)
    return found


def _column(name: str, item: ast.AnnAssign) -> Column | None:
    annotation, value = ast.unparse(item.annotation), item.value
    if "ClassVar" in annotation or "InitVar" in annotation or "KW_ONLY" in annotation:
        return None
    if value is None:
        return Column(name)
    if not isinstance(value, ast.Call):
        return Column(name, default=ast.unparse(value))
    function = value.func.id if isinstance(value.func, ast.Name) else ""
    if function[:1].isupper() or function == "frozenset":  # an object; what a function returns may be a Field
        return Column(name, default=ast.unparse(value))
    given = {k.arg or "": k.value for k in value.keywords}
    if function != "field" or value.args or not given.keys() <= KNOWN_FIELD_OPTIONS:
        return None
    flags = {key: _constant(given[key]) for key in ("repr", "compare") if key in given}
    return Column(
        name,
        default=ast.unparse(given["default"]) if "default" in given else "",
        factory=ast.unparse(given["default_factory"]) if "default_factory" in given else "",
        shown=flags.get("repr", True),
        compared=flags.get("compare", True),
    )


def _constant(node: ast.expr) -> bool:
    return bool(ast.literal_eval(node))


# -- what is written --------------------------------------------------------------------------------------------------


def _write_out(node: ast.ClassDef, options: dict[str, bool], columns: list[Column]) -> None:
    frozen = options.get("frozen", False)
    text = "".join(f"{line}\n" for line in _class_lines(node.name, frozen, options.get("order", False), columns))
    written = ast.parse(text).body
    for statement in written:
        for part in ast.walk(statement):
            ast.copy_location(part, node)
    node.decorator_list = []
    # defaults may use names that the class defines above its fields
    last = max((i for i, item in enumerate(node.body) if isinstance(item, ast.AnnAssign)), default=-1)
    rest = node.body[last + 1 :]
    head = [item for item in node.body[: last + 1] if not isinstance(item, ast.AnnAssign)]
    node.body = [*head, *written, *rest]


def _class_lines(name: str, frozen: bool, order: bool, columns: list[Column]) -> Iterator[str]:
    names = tuple(c.name for c in columns)
    yield f"__slots__ = __match_args__ = {names!r}"
    yield f"__dataclass_fields__ = {SHARED}.Fields()"
    yield from _init_lines(frozen, columns)
    shown = ", ".join(f"{c.name}={{self.{c.name}!r}}" for c in columns if c.shown)
    yield f"def __repr__(self): return f'{{self.__class__.__qualname__}}({shown})'"
    mine, other = (_tuple(who, columns) for who in ("self", "other"))
    for method, sign in {"__eq__": "==", **(COMPARISONS if order else {})}.items():
        yield f"def {method}(self, other):"
        yield f"    return {mine} {sign} {other} if other.__class__ is self.__class__ else NotImplemented"
    if not frozen:
        yield "__hash__ = None"
        return
    yield f"def __hash__(self): return hash({mine})"
    yield f"__setattr__ = {SHARED}.refuse_assignment"
    yield f"__delattr__ = {SHARED}.refuse_deletion"
    yield f"__getstate__ = {SHARED}.get_state"
    yield f"__setstate__ = {SHARED}.set_state"


def _init_lines(frozen: bool, columns: list[Column]) -> Iterator[str]:
    parameters = ["self"]
    for column in columns:
        default = f"{SHARED}.MISSING" if column.factory else column.default
        parameters.append(f"{column.name}={default}" if default else column.name)
    yield f"def __init__({', '.join(parameters)}):"
    if not columns:
        yield "    pass"
    if frozen and columns:
        yield "    assign = object.__setattr__"
    for column in columns:
        name = column.name
        value = f"{column.factory}() if {name} is {SHARED}.MISSING else {name}" if column.factory else name
        if column.factory and not column.factory.isidentifier():
            value = f"({column.factory})() if {name} is {SHARED}.MISSING else {name}"
        yield f"    assign(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}"


def _tuple(who: str, columns: list[Column]) -> str:
    return "(" + "".join(f"{who}.{c.name}, " for c in columns if c.compared) + ")"


# -- imports ----------------------------------------------------------------------------------------------------------


def _drop_type_checking(tree: ast.Module) -> None:
    """Without ``if TYPE_CHECKING:`` and its body, at the top of the module."""

    def is_check(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"

    body: list[ast.stmt] = []
    for node in tree.body:
        body += node.orelse if isinstance(node, ast.If) and is_check(node) else [node]
    tree.body = body


def _replace_imports(tree: ast.Module) -> None:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    body: list[ast.stmt] = []
    for node in tree.body:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if module == "dataclasses" and isinstance(node, ast.ImportFrom):
            body += _located(node, _dataclass_import(_names(node), used))
        elif module == "typing" and isinstance(node, ast.ImportFrom):
            body += _located(node, _typing_import(_names(node)))
        else:
            body.append(node)
    tree.body = body


def _names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def _dataclass_import(names: set[str], used: set[str]) -> str:
    """The replacement for the import of ``names`` from dataclasses in a module that uses ``used``."""
    text = f"from cni_calico import expanded as {SHARED}\n"
    if "replace" in names:
        text += "from cni_calico.expanded import replace\n"
    kept = sorted((names & used) - {"replace"})
    return text + (f"from dataclasses import {', '.join(kept)}\n" if kept else "")


def _typing_import(names: set[str]) -> str:
    text = "".join(f"{name} = {UNTYPED[name]}\n" for name in sorted(names & UNTYPED.keys()))
    kept = sorted(names - UNTYPED.keys())
    return text + (f"from typing import {', '.join(kept)}\n" if kept else "")


def _located(node: ast.stmt, text: str) -> list[ast.stmt]:
    made = ast.parse(text).body
    for statement in made:
        for part in ast.walk(statement):
            ast.copy_location(part, node)
    return made
