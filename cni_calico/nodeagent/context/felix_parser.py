"""The agent's parameters, parsed again only when something that gives them has changed.

Rule: the variables are those of one process and stay; FelixConfigurations are compared by value. Each pass of the data
plane asks several times, and parsing all parameters takes a sixth of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.nodeagent.context.configurations import NOT_SCOPED, FelixFields, Scoped
from cni_calico.nodeagent.context.felix import Parameters, parse_felix


class FelixParser:
    """For one thread."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._given: tuple[FelixFields | None, FelixFields | None, Scoped] = (None, None, NOT_SCOPED)
        self._parsed: Parameters | None = None

    def parse(
        self, node_spec: FelixFields | None, default_spec: FelixFields | None, scoped: Scoped = NOT_SCOPED
    ) -> Parameters:
        """As ``parse_felix``; the same object as long as the same is given."""
        given = (node_spec, default_spec, scoped)
        if self._parsed is None or given != self._given:
            self._given, self._parsed = given, parse_felix(self._environ, *given)
        return self._parsed
