"""A log that keeps what is written to it."""

from __future__ import annotations

from cni_calico.log import Log


class Notes(Log):
    """``texts`` are "level: text"; ``said`` is the same without the levels."""

    def __init__(self) -> None:
        super().__init__("none", stderr=False)
        self.texts: list[str] = []
        self.said: list[str] = []

    def write(self, level: str, text: str) -> None:
        self.texts.append(f"{level}: {text}")
        self.said.append(text)
