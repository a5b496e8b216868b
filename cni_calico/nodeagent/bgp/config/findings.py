"""PURE: problems of the records that BGP is made from, as values; and a reader that finds them field by field.

Rule: a wrong field affects only what it belongs to. It becomes a ``BgpProblem`` that names the record, and its reader
continues with the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cni_calico.model.documents.fields import Wrong, parse_list

ParsedField = TypeVar("ParsedField")
DefaultValue = TypeVar("DefaultValue")

ERROR = "error"  # something configured is not in effect
WARNING = "warning"  # it is in effect, but probably not as intended
NOTE = "note"  # worth a line in a status; no action needed


@dataclass(frozen=True, slots=True, order=True)
class BgpProblem:
    """``about`` names the record ("BGPPeer tor-1"), ``text`` says which part of it is not in effect and why."""

    about: str
    text: str
    severity: str = ERROR

    def __str__(self) -> str:
        return f"{self.about}: {self.text}"


class SpecReader:
    """Reads the fields of one record's spec; ``problems`` collects what is wrong, ``done`` adds unknown fields."""

    def __init__(
        self, about: str, spec: Mapping[str, Any], *, at: str = "", problems: list[BgpProblem] | None = None
    ) -> None:
        self.about = about
        self.spec = spec
        self.at = at
        self.problems: list[BgpProblem] = [] if problems is None else problems
        self.known: set[str] = set()

    @property
    def failed(self) -> bool:
        return any(problem.severity == ERROR for problem in self.problems)

    def inner(self, spec: Mapping[str, Any], at: str) -> SpecReader:
        """A reader of an object inside this one; it adds to the same problems."""
        return SpecReader(self.about, spec, at=f"{self.at}{at}.", problems=self.problems)

    def error(self, text: str) -> None:
        self.problems.append(BgpProblem(self.about, text))

    def warn(self, text: str) -> None:
        self.problems.append(BgpProblem(self.about, text, WARNING))

    def read(
        self, name: str, parse: Callable[[Any, str], ParsedField], default: DefaultValue
    ) -> ParsedField | DefaultValue:
        """The field, or the default if it is absent, null or wrong."""
        self.known.add(name)
        raw = self.spec.get(name)
        if raw is None:
            return default
        try:
            return parse(raw, f"{self.at}{name}")
        except Wrong as e:
            self.error(str(e))
            return default

    def read_each(self, name: str, parse: Callable[[Any, str], ParsedField]) -> tuple[ParsedField, ...]:
        """The items of a list field; wrong ones are left out."""
        items = self.read(name, parse_list, ())
        out = []
        for i, item in enumerate(items):
            try:
                out.append(parse(item, f"{self.at}{name}[{i}]"))
            except Wrong as e:
                self.error(str(e))
        return tuple(out)

    def done(self, ignored: Iterable[str] = ()) -> None:
        """Warn about fields that were not read, except for those in ``ignored``, which mean nothing here."""
        for name in sorted(set(self.spec) - self.known - set(ignored)):
            self.warn(f"field {self.at}{name} is not known to this version and has no effect")
