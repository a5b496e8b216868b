"""Leaves out of compiled code what nothing reads when it runs, and what a process would keep in memory all the same:
the texts of annotations, docstrings of functions, and in which column of its line each instruction stands.

Rule: code does the same as before, and an error still says in which line it was raised. Annotations stay where
something reads them: in what is still a dataclass, or has a base class that may be made of them (a named tuple); so do
docstrings of classes, which are what errors of dnspython say.
"""

from __future__ import annotations

import ast
import dis
import marshal
from collections.abc import Iterator
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType

_HEAD = 16  # of a .pyc file
_LONGEST = 8  # code units that one entry of a table of lines speaks of
# kinds of an entry (CPython, Objects/locations.md): below 10 two bytes, on the line before; below 13 three, so many
# lines further
_SHORT, _ONE_LINE, _LINE, _LONG, _NOWHERE = 10, 13, 13, 14, 15


def drop_annotations(tree: ast.Module) -> ast.Module:
    """Without those of functions, of names of the module, and of plain classes. Inside a function they cost nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.ClassDef) and not (node.bases or node.keywords or node.decorator_list):
            node.body = list(_unannotated(node.body)) or [ast.copy_location(ast.Pass(), node)]
    tree.body = list(_unannotated(tree.body))
    return ast.fix_missing_locations(tree)


def _unannotated(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for item in body:
        if not isinstance(item, ast.AnnAssign):
            yield item
        elif item.value is not None:
            yield ast.copy_location(ast.Assign(targets=[item.target], value=item.value), item)


def without_columns(code: CodeType) -> CodeType:
    """The same code, whose tables say the line of each instruction and nothing else."""
    constants = tuple(without_columns(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_linetable=_lines_alone(code.co_linetable), co_consts=constants)


def without_docstrings(code: CodeType) -> CodeType:
    """The same code without those of its functions: a function's first constant, which no instruction loads."""
    first, *others = code.co_consts or (None,)
    is_function = bool(code.co_flags & CO_NEWLOCALS)
    if is_function and isinstance(first, str) and not any(_loads_first(one) for one in dis.get_instructions(code)):
        first = None
    constants = (without_docstrings(one) if isinstance(one, CodeType) else one for one in (first, *others))
    return code.replace(co_consts=tuple(constants)) if code.co_consts else code


def _loads_first(instruction: dis.Instruction) -> bool:
    return instruction.opcode in dis.hasconst and instruction.arg == 0


def make_lean(directory: Path) -> None:
    """Rewrite every .pyc file there, of modules that are not our own."""
    for path in sorted(directory.rglob("*.pyc")):
        content = path.read_bytes()
        code = without_columns(without_docstrings(marshal.loads(content[_HEAD:])))  # noqa: S302 (just compiled)
        path.write_bytes(content[:_HEAD] + marshal.dumps(code))


def _lines_alone(table: bytes) -> bytes:
    """Entries of one line after another are one, as far as one can speak of so many instructions."""
    found = bytearray()
    todo, step = 0, 0
    nowhere = False
    for length, moved in _entries(table):
        if todo and (moved is None) == nowhere and not moved:
            todo += length
            continue
        found += _encoded(todo, None if nowhere else step)
        todo, step, nowhere = length, moved or 0, moved is None
    return bytes(found + _encoded(todo, None if nowhere else step))


def _entries(table: bytes) -> Iterator[tuple[int, int | None]]:
    """For how many code units each is, and how many lines further it is than the one before; None: at no line."""
    at = 0
    while at < len(table):
        kind, length = table[at] >> 3 & 15, (table[at] & 7) + 1
        at += 1
        if kind == _NOWHERE:
            yield length, None
        elif kind < _SHORT:
            at += 1
            yield length, 0
        elif kind < _ONE_LINE:
            at += 2
            yield length, kind - _SHORT
        else:
            moved, at = _varint(table, at)
            for _ in range(3 if kind == _LONG else 0):  # the last line and both columns
                _, at = _varint(table, at)
            yield length, -(moved >> 1) if moved & 1 else moved >> 1


def _varint(table: bytes, at: int) -> tuple[int, int]:
    """Six bits a byte, the lowest first; the number, and where it ends."""
    value = shift = 0
    while True:
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            return value, at


def _encoded(units: int, moved: int | None) -> bytes:
    found = bytearray()
    while units > 0:
        length = min(units, _LONGEST)
        kind = _NOWHERE if moved is None else _LINE
        found.append(128 | kind << 3 | length - 1)
        if moved is not None:
            value = -moved << 1 | 1 if moved < 0 else moved << 1
            while value > 63:
                found.append(64 | value & 63)
                value >>= 6
            found.append(value)
            moved = 0
        units -= length
    return bytes(found)
