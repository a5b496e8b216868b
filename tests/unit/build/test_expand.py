"""What build/expand.py writes out behaves as the dataclass in the source, for every class of the project."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import operator
import pickle
import re
import sys
import typing
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from expand import drop_docstrings, expand, inherited

from cni_calico import expanded

ROOT = Path(__file__).resolve().parents[3]

ALL = sorted((ROOT / "cni_calico").rglob("*.py"))
SOURCES = [path for path in ALL if "@dataclass" in path.read_text()]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def written_out(source: str, name: str) -> ModuleType:
    module = ModuleType(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # where dataclasses look for what an annotation means
        exec(compile(expand(source), name, "exec", dont_inherit=True), module.__dict__)
    return module


def classes(module: ModuleType) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and dataclasses.is_dataclass(value)
        and not hasattr(value, "__settings__")  # those of daemon/settings_table.py
    }


def is_written_out(cls: type[Any]) -> bool:
    return not hasattr(cls, "__dataclass_params__")  # the decorator leaves its parameters


MADE = [
    (original, classes(written)[name])
    for path in SOURCES
    for module in [importlib.import_module(name_of(path))]
    for written in [written_out(path.read_text(), module.__name__)]
    for name, original in classes(module).items()
]
PAIRS = [
    pytest.param(original, made, id=f"{original.__module__}.{original.__name__}")
    for original, made in MADE
    if is_written_out(made)
]
pairs = pytest.mark.parametrize(("original", "made"), PAIRS)


def values(cls: type[Any], mark: str = "") -> list[str]:
    return [f"{name}{mark}" for name in cls.__match_args__]


def without_place(value: object) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


def outcome(call: Any, *arguments: Any) -> Any:
    """What a call returns, or the error it raises."""
    try:
        return call(*arguments)
    except Exception as e:
        return type(e), str(e)


def test_only_what_no_call_imports_has_others() -> None:
    """The start of the agent, the controllers, the policy engine, Docker's driver, what asks about policies and what
    looks for lost addresses is not a CNI call's.
    """
    left = {f"{made.__module__}.{made.__name__}" for _, made in MADE if not is_written_out(made)}
    resident = {"nodeagent", "controllers", "policy", "daemon", "relay", "docker"}
    others = {name for name in left if name.split(".")[1] not in resident}
    assert {
        name for name in others if not name.startswith(("cni_calico.ctl.policy.", "cni_calico.ipam.lost."))
    } == set()
    assert len(PAIRS) > 150 and len(PAIRS) > 10 * len(left)


@pairs
def test_shape(original: Any, made: Any) -> None:
    assert made.__match_args__ == original.__match_args__
    slots = getattr(original, "__slots__", ())
    assert getattr(made, "__slots__", ()) == slots
    assert made.__qualname__ == original.__qualname__
    generated = {"__weakref__", "__dict__", "__dataclass_params__", "__dataclass_fields__", "__annotations__"}
    generated.add("__slotnames__")  # copyreg's note of a class whose objects have been copied
    generated |= {"__orig_bases__", "__parameters__"}  # typing's notes of a generic class
    methods = {name for name in vars(original) if name not in slots} - generated
    assert methods - vars(made).keys() == set()
    factories = {f.name for f in dataclasses.fields(original) if f.default_factory is not dataclasses.MISSING}
    for name, parameter in inspect.signature(original).parameters.items():
        mine = inspect.signature(made).parameters[name]
        assert mine.kind == parameter.kind
        if name in factories:
            assert mine.default is expanded.MISSING
        else:
            # a default may be an object of a class of the same module, which is another class here
            assert without_place(mine.default) == without_place(parameter.default)


@pairs
def test_behaviour(original: Any, made: Any) -> None:
    theirs, ours = original(*values(original)), made(*values(made))
    assert repr(ours) == repr(theirs)
    by_identity = original.__eq__ is object.__eq__
    if by_identity:
        assert (made.__eq__, made.__hash__) == (original.__eq__, original.__hash__)
    else:
        assert outcome(hash, ours) == outcome(hash, theirs)
    for mark in ("", "'"):
        other, our_other = original(*values(original, mark)), made(*values(made, mark))
        assert (ours == our_other) == (theirs == other)
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            assert outcome(compare, ours, our_other) == outcome(compare, theirs, other)
    assert (ours == theirs) is False
    for name in original.__match_args__:
        assert outcome(setattr, ours, name, getattr(ours, name, "")) == outcome(
            setattr, theirs, name, getattr(theirs, name, "")
        )
    # with slots: Python 3.11's own frozen class that has them fails here with a TypeError
    with pytest.raises(AttributeError):
        ours.another = 1
    for copied in (copy.copy(ours), copy.deepcopy(ours)):
        assert repr(copied) == repr(ours) if by_identity else copied == ours
    for name in original.__match_args__:
        assert outcome(delattr, ours, name) == outcome(delattr, theirs, name)


@pairs
def test_functions_of_dataclasses(original: Any, made: Any) -> None:
    theirs, ours = original(*values(original)), made(*values(made))
    assert dataclasses.is_dataclass(made)
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert dataclasses.fields(ours)[:1] == dataclasses.fields(ours)[:1], "made once"
    for name in original.__match_args__:
        changed = dataclasses.replace(theirs, **{name: "other"})
        for replace in (dataclasses.replace, expanded.replace):
            assert repr(replace(ours, **{name: "other"})) == repr(changed)


@pairs
def test_defaults(original: Any, made: Any) -> None:
    """What is not given is the same; what a factory makes is each object's own."""
    required = [f for f in dataclasses.fields(original) if f.default is f.default_factory is dataclasses.MISSING]
    given = [f.name for f in required]
    theirs, ours, another = original(*given), made(*given), made(*given)
    for field in dataclasses.fields(original):
        mine = getattr(ours, field.name)
        assert without_place(mine) == without_place(getattr(theirs, field.name))
        if field.default_factory is not dataclasses.MISSING and isinstance(mine, dict | list | set):
            assert mine is not getattr(another, field.name)


SOURCE = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import ClassVar

if TYPE_CHECKING:
    import nothing_of_this_name

def special() -> Any:
    return field(default=1)

@dataclass(frozen=True, slots=True)
class Base:
    a: int

@dataclass(frozen=True, slots=True)
class {name}{bases}:
    {body}
"""


@pytest.mark.parametrize(
    ("bases", "body"),
    [
        ("(Base)", "b: int = 1"),
        ("", "a: int = special()"),
        ("", "a: int = field(default=1, kw_only=True)"),
        ("", "a: int\n    def __post_init__(self): pass"),
        ("", "a: int\n    def __eq__(self, other): return True"),
        ("", "a: InitVar[int] = 1"),
    ],
)
def test_what_is_not_understood_stays_a_dataclass(bases: str, body: str) -> None:
    module = written_out(SOURCE.format(name="Odd", bases=bases, body=body), "odd")
    assert not is_written_out(classes(module)["Odd"])
    assert is_written_out(classes(module)["Base"]) == (bases == "")


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass(slots=True)\nclass Odd(Generic[T]):\n    a: T\n    name: ClassVar[str] = 'x'\n    b: int = 1",
        "@dataclass(frozen=True)\nclass Odd:\n    name: ClassVar[str] = 'x'\n    a: int\n    b: int = 1",
        "@dataclass(slots=True, eq=False, weakref_slot=True)\nclass Odd:\n    name = 'x'\n    a: int\n    b: int = 1",
    ],
)
def test_kinds_that_only_a_resident_part_has(source: str) -> None:
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    head += "from typing import ClassVar, Generic, TypeVar\nT = TypeVar('T')\n"
    odd: Any = classes(written_out(head + source, "odd"))["Odd"]
    assert is_written_out(odd)
    assert (odd.name, odd.__match_args__, odd(1).a, odd(a=2).b, odd(1, 3).b) == ("x", ("a", "b"), 1, 1, 3)
    assert (odd(1) == odd(1)) is (odd.__eq__ is not object.__eq__)
    if "weakref_slot" in source:
        assert weakref.ref(made := odd(1))() is made


def test_line_numbers_are_the_sources() -> None:
    source = (
        "from dataclasses import dataclass\n\n\n@dataclass(slots=True)\nclass A:\n    a: int\n\n    def fail(self):\n"
    )
    source += "        raise ValueError(self.a)\n"
    with pytest.raises(ValueError, match="7") as caught:
        written_out(source, "lines").A(7).fail()
    assert caught.traceback[-1].lineno + 1 == 9


def test_imports_are_left_out() -> None:
    module = ModuleType("plain")
    exec(compile(expand(SOURCE.format(name="Plain", bases="", body="a: Any = ()")), "plain", "exec"), module.__dict__)
    assert {"Any", "TYPE_CHECKING", "dataclass", "field"} & vars(module).keys() == {"field"}  # a function uses it


def left(source: str) -> str:
    """What is left of a module in which only types are named."""
    return ast.unparse(expand(f"from __future__ import annotations\n{source}")).partition("\n")[2]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from a import A, B\ndef f(x: A) -> B:\n    y: A = 1", "def f(x: A) -> B:\n    y: A = 1"),
        ("from a import A\nx: A = A()", "from a import A\nx: A = A()"),
        ("from a import A\nassert A", "from a import A\nassert A"),
        ("from a import A\ndef f(x: A):\n    from a import A\n    A()", "def f(x: A):\n    from a import A\n    A()"),
        ("from a import A\ndef f(a=A):\n    pass", "from a import A\n\ndef f(a=A):\n    pass"),
        ("import a.b as c\nx: c.D = 1", "x: c.D = 1"),
        ("import a.b\nx: a.b.D = 1", "x: a.b.D = 1"),
        ("import a", "import a"),  # for what the import does
        ("from a import A\n__all__ = ['A']\nx: A = 1", "from a import A\n__all__ = ['A']\nx: A = 1"),
        ("from typing import Any\nx: Any = 1", "x: Any = 1"),
        ("from typing import Any\nx = Any", "Any = object\nx = Any"),
        ("from typing import TypeVar\nItem = TypeVar('Item')\ndef f(x: Item): pass", "def f(x: Item):\n    pass"),
        ("from collections.abc import Mapping\nTable = Mapping[str, int]\nTables = list[Table]", ""),
        ("from a import A\nOneOf = A | None", ""),
        (
            "from typing import Literal\nOneOf = Literal['a']",
            "from cni_calico.expanded import Literal\nOneOf = Literal['a']",
        ),
        (
            "from typing import Generic, TypeVar\nItem = TypeVar('Item')\nclass A(Generic[Item]): pass",
            "from cni_calico.expanded import Generic\nclass A(Generic): pass",
        ),
        ("from typing import cast\nx = cast(list[A], f(cast(B, 1)))", "x = f(1)"),
        ("from a import TABLE\nItem = TABLE[1]", "from a import TABLE\nItem = TABLE[1]"),
        ("Texts = list[str]\nx = Texts()", "Texts = list[str]\nx = Texts()"),
        ("from a import A\nx = set[A]()", "x = set()"),
        ("from a import A\nclass B(dict[str, A]): pass", "class B(dict):\n    pass"),
        ("from typing import NamedTuple", "from cni_calico.expanded import NamedTuple"),
        ("from typing import ClassVar\nclass A:\n    x: ClassVar[int] = 1", None),
    ],
)
def test_what_only_annotations_name_is_left_out(source: str, expected: str | None) -> None:
    whole = ast.unparse(ast.parse(source)) if expected is None else expected
    assert ast.unparse(ast.parse(left(source))) == ast.unparse(ast.parse(whole))


def test_docstrings_are_left_out() -> None:
    source = '"""a"""\nx = 1\n\ndef f():\n    """b"""\n\nclass A:\n    """c"""\n    y = "text"\n\n    def g(self):\n'
    source += '        """d"""\n        return "e"\n\n@dataclass\nclass B:\n    """kept"""\n    z: int'
    expected = 'x = 1\n\ndef f():\n    pass\n\nclass A:\n    y = "text"\n\n    def g(self):\n        return "e"\n\n'
    expected += '@dataclass\nclass B:\n    """kept"""\n    z: int'
    assert ast.unparse(drop_docstrings(ast.parse(source))) == ast.unparse(ast.parse(expected))
    assert ast.unparse(drop_docstrings(ast.parse('"""alone"""'))) == ""


def test_nothing_reads_a_docstring() -> None:
    """The frozen executables have none."""
    sources = [*ALL, *(ROOT / "build" / "launch").glob("*.py")]
    assert [path for path in sources if re.search(r"__doc__|getdoc|get_docstring", path.read_text())] == []


def bound_in(tree: ast.Module) -> set[str]:
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_nothing_is_left_out_that_another_module_imports() -> None:
    """Each module is written by itself: nobody would know."""
    trees = {name_of(path).removesuffix(".__init__"): expand(path.read_text()) for path in ALL}
    bound = {name: bound_in(tree) for name, tree in trees.items()}
    missing = {
        f"{name}: {node.module}.{alias.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in trees
        for alias in node.names
        if alias.name not in bound[node.module] and f"{node.module}.{alias.name}" not in trees
    }
    assert missing == set()


class Light(expanded.NamedTuple):
    """What it is."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return self.a * 2


class Heavy(typing.NamedTuple):
    """What it is."""

    a: int
    b: str = "x"

    @property
    def double(self) -> int:
        return self.a * 2


def test_a_light_named_tuple_is_as_typings() -> None:
    kinds: tuple[Any, ...] = (Light, Heavy)
    for kind in kinds:
        record = kind(3)
        assert (record, record.b, record.double) == ((3, "x"), "x", 6)
        assert record._replace(b="y") == (3, "y")
        assert repr(record) == f"{kind.__name__}(a=3, b='x')"
        assert (kind.__doc__, kind.__module__, kind._fields) == ("What it is.", __name__, ("a", "b"))
        assert pickle.loads(pickle.dumps(record)) == record


class LightBox(expanded.Generic):
    __slots__ = ("held",)

    def __init__(self, held: int) -> None:
        self.held = held


def test_what_stands_for_typings_names() -> None:
    """As far as code that is not checked for types can tell."""
    boxes: Any = LightBox
    assert boxes[int](3).held == 3 and boxes[int] is LightBox
    assert isinstance(boxes(1), expanded.Generic) and not hasattr(boxes(1), "__dict__")
    for kinds, get_args in ((expanded, expanded.get_args), (typing, typing.get_args)):
        literal: Any = kinds.Literal
        assert get_args(literal["a", "b"]) == ("a", "b") and get_args(literal["a"]) == ("a",)
        transform: Any = kinds.dataclass_transform
        assert transform(kw_only_default=True)(LightBox) is LightBox

    told: Any = type("Told", (expanded.TypedDict,), {})
    assert told(a=1, b=(2, 3)) == {"a": 1, "b": (2, 3)}


def test_a_dataclass_stays_one_if_another_module_makes_a_dataclass_of_it() -> None:
    """In no module of the product does one inherit from a class that was written out."""
    sources = {path: path.read_text() for path in ALL}
    bases = inherited(sources.values())
    trees = [expand(source, bases) for source in sources.values()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    written_out = {node.name for node in classes if "__match_args__" in ast.unparse(node)}
    of_dataclasses = [node for node in classes if any("dataclass" in ast.unparse(d) for d in node.decorator_list)]
    assert any(node.bases for node in of_dataclasses) and written_out
    assert not [node.name for node in of_dataclasses if {ast.unparse(base) for base in node.bases} & written_out]
