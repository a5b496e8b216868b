"""What build/lean.py leaves out is what nothing reads: the same code, the same lines."""

from __future__ import annotations

import ast
import marshal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lean import drop_annotations, make_lean, without_columns, without_docstrings

ROOT = Path(__file__).resolve().parents[3]
# ours, and of the standard library what has every kind of statement
SOURCES = [*sorted((ROOT / "cni_calico" / "policy").glob("*.py")), *(Path(m.__file__ or "") for m in (ast, traceback))]


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def lines(code: CodeType) -> list[int | None]:
    """Of each instruction."""
    return [place[0] for place in code.co_positions()]


def test_lines_stay_and_columns_go() -> None:
    before = after = 0
    for path in SOURCES:
        whole = compile(path.read_text(), str(path), "exec", dont_inherit=True)
        for one, lean in zip(codes(whole), codes(without_columns(whole)), strict=True):
            assert lines(lean) == lines(one)
            assert (lean.co_code, lean.co_names, lean.co_exceptiontable) == (
                one.co_code,
                one.co_names,
                one.co_exceptiontable,
            )
            assert {place[2] for place in lean.co_positions()} == {None}
            before, after = before + len(one.co_linetable), after + len(lean.co_linetable)
    assert after < before / 3


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8), st.integers(1, 40))
def test_lines_that_are_far_apart(gaps: list[int], times: int) -> None:
    """Forwards, and backwards where a loop's condition is asked again; long expressions, on one line and on many."""
    text = "".join("\n" * gap + f"while x < {gap}:\n  x = f({'a, ' * times})(\n{'b,' * times})\n" for gap in gaps)
    whole = compile(text, "drawn", "exec", dont_inherit=True)
    assert lines(without_columns(whole)) == lines(whole)


def test_an_error_says_its_line() -> None:
    code = without_columns(compile("def f(x):\n    y = 1\n\n    return (\n        1 / x)\n\nf(0)", "here", "exec"))
    with pytest.raises(ZeroDivisionError) as caught:
        exec(code, {})
    assert [entry.lineno for entry in traceback.extract_tb(caught.tb)][1:] == [7, 5]


def test_docstrings_of_functions_go_and_those_of_classes_stay() -> None:
    source = (
        'def f():\n    "a"\n    return 1\n\ndef g(x="b"):\n    "c"\n    return x, "c"\n\ndef h():\n    return "d"\n\n'
    )
    source += 'class A:\n    "e"\n    def m(self):\n        "f"\n\n    k = lambda self: "g"\n'
    found: dict[str, Any] = {}
    exec(without_docstrings(compile(source, "here", "exec", dont_inherit=True)), found)
    f, g, h, made = found["f"], found["g"], found["h"], found["A"]()
    assert (f(), g(), h(), made.m(), made.k()) == (1, ("b", "c"), "d", None, "g")
    assert (f.__doc__, made.__doc__, made.m.__doc__) == (None, "e", None)


def test_files_are_rewritten(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "b.pyc"
    code = compile("def f():\n    return g(1, 2, 3)", "b.py", "exec", dont_inherit=True)
    file.write_bytes(b"sixteen bytes...."[:16] + marshal.dumps(code))
    make_lean(tmp_path)
    found = marshal.loads(file.read_bytes()[16:])
    assert file.read_bytes()[:16] == b"sixteen bytes..." and found == without_columns(code)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a: A, *b: B, c: C = 1, **d: D) -> E:\n    x: F = 1", "def f(a, *b, c=1, **d):\n    x: F = 1"),
        ("async def f(a: A) -> B: pass", "async def f(a): pass"),
        ("x: A = 1\ny: B", "x = 1"),
        ("class A:\n    x: B = 1\n    y: C", "class A:\n    x = 1"),
        ("class A:\n    x: B", "class A:\n    pass"),
        ("@dataclass\nclass A:\n    x: B", "@dataclass\nclass A:\n    x: B"),
        (
            "class A(NamedTuple):\n    x: B\n    def f(self) -> C: pass",
            "class A(NamedTuple):\n    x: B\n    def f(self): pass",
        ),
    ],
)
def test_annotations_are_left_out_where_nothing_reads_them(source: str, expected: str) -> None:
    assert ast.unparse(drop_annotations(ast.parse(source))) == ast.unparse(ast.parse(expected))


def test_nothing_asks_for_the_annotations_of_a_function() -> None:
    """The frozen executables have none."""
    asked = ("get_type_hints", "singledispatch", "get_annotations", "__annotations__")
    sources = {path: path.read_text() for path in (ROOT / "cni_calico").rglob("*.py")}
    found = {path.name for path, text in sources.items() if any(word in text for word in asked)}
    assert found == {"expanded.py"}  # of a named tuple's class, which keeps them
