"""Expands at build time what a module computes at every start: its dataclasses, and names that only a type checker
needs.

A module's head imports what the module names, types included; what only annotations name is left out here.

Rule: a class is expanded only if it is of the plain kind that is completely understood here, otherwise it stays as it
is; so the frozen module means what its source means, and costs less. For ``@dataclass(frozen=True, slots=True)`` Python
compiles seven functions and makes the class twice, 0.4 ms each time; importing ``dataclasses`` takes 5 ms, ``typing``
1.5. tests/unit/build/test_expand.py compares every class of the project with the dataclass it came from.
"""

from __future__ import annotations

import ast
import dis
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import TypeGuard

SHARED = "_expanded"  # the name under which a module finds cni_calico.expanded
KNOWN_OPTIONS = {"frozen", "slots", "order", "eq", "weakref_slot"}
KNOWN_FIELD_OPTIONS = {"default", "default_factory", "init", "repr", "compare"}
# methods that a dataclass makes, calls or takes into account
SPECIAL = {f"__{name}__" for name in ("init", "post_init", "repr", "eq", "hash", "lt", "le", "gt", "ge", "setattr")}
SPECIAL |= {f"__{name}__" for name in ("delattr", "getstate", "setstate", "init_subclass", "class_getitem")}
# what typing's names may be if nobody checks types
UNTYPED = {"TYPE_CHECKING": "False", "Any": "object", "Protocol": "object"}
# those of typing that cni_calico.expanded has without its weight
LIGHT = {"Generic", "Literal", "NamedTuple", "TypedDict", "dataclass_transform", "get_args"}
READ_BY_DATACLASSES = {"ClassVar", "InitVar", "KW_ONLY"}  # in the text of annotations
GENERIC = {"dict", "frozenset", "list", "set", "tuple", "type"}
TYPE_NAME = re.compile(r"_?[A-Z]\w*[a-z]\w*|JSON")  # not a constant
COMPARISONS = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


@dataclass(frozen=True)
class Column:
    """A field: ``default`` and ``factory`` are expressions, "" if there is none; ``given``: it is a parameter."""

    name: str
    default: str = ""
    factory: str = ""
    shown: bool = True
    compared: bool = True
    given: bool = True


def inherited(sources: Iterable[str]) -> frozenset[str]:
    """The names of classes of which dataclasses are made, in some module: they have to be dataclasses, too."""
    made = (node for source in sources for node in _classes(ast.parse(source)) if _dataclass_options(node) is not None)
    bases = (base for node in made for base in node.bases)
    return frozenset(ast.unparse(base).rpartition(".")[2] for base in bases)


def expand(source: str, bases: Collection[str] = ()) -> ast.Module:
    """The module with everything expanded that can be; line numbers are the source's. ``bases``: see ``inherited``."""
    tree = ast.parse(source)
    _drop_casts(tree)
    drop_types(tree)
    here = {base.id for node in _classes(tree) for base in node.bases if isinstance(base, ast.Name)}
    for node in _classes(tree):
        if (options := _dataclass_options(node)) is not None:
            plain = node.name not in here and node.name not in bases and _is_plain(node, options)
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
    """One decorator, slots or no assignments, no base class but Generic[...], and no method that a dataclass would
    treat in a special way.
    """
    special = SPECIAL & {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
    bases = [base for base in node.bases if ast.unparse(base) != "Generic"]
    slots, frozen = options.get("slots", False), options.get("frozen", False)
    return (
        len(node.decorator_list) == 1
        and (slots or frozen)
        and not (frozen and options.get("weakref_slot", False))
        and options.keys() <= KNOWN_OPTIONS
        and not (bases or node.keywords or special)
    )


def _columns(node: ast.ClassDef) -> list[Column] | None:
    """The fields in order; None if one is of a kind not known here."""
    found = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not _is_of_class(item):
            column = _column(item.target.id, item)
            if column is None:
                return None
            found.append(column)
    return found


def _is_of_class(item: ast.AnnAssign) -> bool:
    """Whether it is an attribute of the class, and no field."""
    return ast.unparse(item.annotation).startswith("ClassVar")


def _column(name: str, item: ast.AnnAssign) -> Column | None:
    annotation, value = ast.unparse(item.annotation), item.value
    if "InitVar" in annotation or "KW_ONLY" in annotation:
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
    flags = {key: _constant(given[key]) for key in ("init", "repr", "compare") if key in given}
    if not flags.get("init", True) and given.keys().isdisjoint(("default", "default_factory")):
        return None
    return Column(
        name,
        default=ast.unparse(given["default"]) if "default" in given else "",
        factory=ast.unparse(given["default_factory"]) if "default_factory" in given else "",
        shown=flags.get("repr", True),
        compared=flags.get("compare", True),
        given=flags.get("init", True),
    )


def _constant(node: ast.expr) -> bool:
    return bool(ast.literal_eval(node))


# -- what is written --------------------------------------------------------------------------------------------------


def _write_out(node: ast.ClassDef, options: dict[str, bool], columns: list[Column]) -> None:
    text = "".join(f"{line}\n" for line in _class_lines(options, columns))
    written = ast.parse(text).body
    for statement in written:
        for part in ast.walk(statement):
            ast.copy_location(part, node)
    node.decorator_list = []
    # defaults may use names that the class defines above its fields
    last = max((i for i, item in enumerate(node.body) if isinstance(item, ast.AnnAssign)), default=-1)
    rest = node.body[last + 1 :]
    head = [item for item in node.body[: last + 1] if not isinstance(item, ast.AnnAssign) or _is_of_class(item)]
    node.body = [*head, *written, *rest]


def _class_lines(options: dict[str, bool], columns: list[Column]) -> Iterator[str]:
    names = tuple(c.name for c in columns)
    frozen, slots = options.get("frozen", False), options.get("slots", False)
    yield f"__match_args__ = {tuple(c.name for c in columns if c.given)!r}"
    if slots:
        yield f"__slots__ = {(*names, '__weakref__') if options.get('weakref_slot', False) else names!r}"
    else:  # a default stays in the class
        yield from (f"{c.name} = {c.default}" for c in columns if c.default)
        columns = [replace(c, default=c.default and c.name) for c in columns]
    told = "" if all(c.given for c in columns) else repr(names)
    yield f"__dataclass_fields__ = {SHARED}.Fields({told})"
    yield from _init_lines(frozen, columns)
    shown = ", ".join(f"{c.name}={{self.{c.name}!r}}" for c in columns if c.shown)
    yield f"def __repr__(self): return f'{{self.__class__.__qualname__}}({shown})'"
    if options.get("eq", True):
        yield from _comparing_lines(frozen, options.get("order", False), columns)
    if frozen:
        yield f"__setattr__ = {SHARED}.refuse_assignment"
        yield f"__delattr__ = {SHARED}.refuse_deletion"
    if frozen and slots:
        yield f"__getstate__ = {SHARED}.get_state"
        yield f"__setstate__ = {SHARED}.set_state"


def _comparing_lines(frozen: bool, order: bool, columns: list[Column]) -> Iterator[str]:
    mine, other = (_tuple(who, columns) for who in ("self", "other"))
    for method, sign in {"__eq__": "==", **(COMPARISONS if order else {})}.items():
        yield f"def {method}(self, other):"
        yield f"    return {mine} {sign} {other} if other.__class__ is self.__class__ else NotImplemented"
    yield f"def __hash__(self): return hash({mine})" if frozen else "__hash__ = None"


def _init_lines(frozen: bool, columns: list[Column]) -> Iterator[str]:
    parameters = ["self"]
    for column in [c for c in columns if c.given]:
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
        if not column.given:
            value = f"({column.factory})()" if column.factory else column.default
        yield f"    assign(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}"


def _tuple(who: str, columns: list[Column]) -> str:
    return "(" + "".join(f"{who}.{c.name}, " for c in columns if c.compared) + ")"


# -- texts for readers ------------------------------------------------------------------------------------------------


def drop_docstrings(tree: ast.Module) -> ast.Module:
    """Without docstrings, a twelfth of what a process would read and keep. A class that is still a dataclass keeps its
    own: without one ``dataclasses`` would write one, from its signature, at every start.
    """
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            if isinstance(node, ast.ClassDef) and _dataclass_options(node) is not None:
                continue
            first = node.body.pop(0)
            if not node.body and not isinstance(node, ast.Module):
                node.body = [ast.copy_location(ast.Pass(), first)]
    return tree


# -- imports ----------------------------------------------------------------------------------------------------------


class _WithoutCasts(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return node.args[1] if isinstance(node.func, ast.Name) and node.func.id == "cast" else node


def _drop_casts(tree: ast.Module) -> None:
    """``cast`` only tells a type checker something."""
    if "cast" not in _imported_from(tree, "typing"):
        return
    _WithoutCasts().visit(tree)
    for statement in [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "typing"]:
        statement.names = [alias for alias in statement.names if alias.name != "cast"]
        if not statement.names:
            tree.body.remove(statement)


def drop_types(tree: ast.Module) -> None:
    """Without what is there for a type checker only, at the top of the module: ``if TYPE_CHECKING:`` with its body,
    type variables and aliases of generic types that nothing but annotations uses, and imports of the same kind. What a
    generic type is made of is left out where it is a base class or called.

    What other modules import from this one is not known here: tests/unit/build/test_expand.py looks for it.
    """
    named = {name for node in ast.walk(tree) for name in _names_in(node)}
    tree.body = [kept for node in tree.body for kept in (node.orelse if _is_type_checking(node) else [node])]
    generic = GENERIC | _imported_from(tree, "collections") | _imported_from(tree, "collections.abc")
    own = generic | _imported_from(tree, "typing") & {"Generic"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.bases = [base.value if _is_subscript_of(base, own) else base for base in node.bases]
        elif isinstance(node, ast.Call) and _is_subscript_of(node.func, generic):
            node.func = node.func.value
    while unused := [one for one in tree.body if _is_alias(one, generic) and not _targets(one) & _loaded(tree)]:
        tree.body = [one for one in tree.body if one not in unused]
    left_out = named - _loaded(tree) - _exported(tree) - READ_BY_DATACLASSES - _imported_from(tree, "__future__")
    for statement in [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]:
        statement.names = [alias for alias in statement.names if _bound(alias) not in left_out]
        if not statement.names:
            tree.body.remove(statement)


def _is_type_checking(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _names_in(node: ast.AST) -> Iterator[str]:
    """The name that a node is, or those in a text, which may be an annotation."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 120:
        yield from re.findall(r"\b[A-Z]\w+", node.value)


def _imported_from(tree: ast.Module, module: str) -> set[str]:
    found = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == module]
    return {_bound(alias) for node in found for alias in node.names}


def _exported(tree: ast.Module) -> set[str]:
    """The names in ``__all__``."""
    lists = [node.value for node in tree.body if _targets(node) == {"__all__"} and isinstance(node, ast.Assign)]
    return {name for each in lists for name in ast.literal_eval(each)}


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _targets(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_alias(node: ast.stmt, generic: set[str]) -> bool:
    """Whether a statement names a generic type, one of several types, or a type variable."""
    if not (isinstance(node, ast.Assign) and all(TYPE_NAME.fullmatch(name) for name in _targets(node))):
        return False
    value = node.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "TypeVar"
    return isinstance(value, ast.BinOp) or _is_subscript_of(value, generic)


def _is_subscript_of(node: ast.AST, generic: set[str]) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in generic


def _loaded(tree: ast.Module) -> set[str]:
    """The names of the module that it uses when it runs: the compiler knows what is local, and skips annotations."""
    found: set[str] = set()
    todo = [compile(tree, "", "exec", dont_inherit=True)]
    while todo:
        code = todo.pop()
        loads = [one for one in dis.get_instructions(code) if one.opname.startswith(("LOAD_NAME", "LOAD_GLOBAL"))]
        found |= {one.argval for one in loads}
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def _replace_imports(tree: ast.Module) -> None:
    used = _loaded(ast.fix_missing_locations(tree))
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
    light = names & LIGHT
    text += f"from cni_calico.expanded import {', '.join(sorted(light))}\n" if light else ""
    kept = sorted(names - UNTYPED.keys() - LIGHT)
    return text + (f"from typing import {', '.join(kept)}\n" if kept else "")


def _located(node: ast.stmt, text: str) -> list[ast.stmt]:
    made = ast.parse(text).body
    for statement in made:
        for part in ast.walk(statement):
            ast.copy_location(part, node)
    return made
