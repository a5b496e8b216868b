"""Logs a problem once for as long as it lasts, not at every attempt.

Rule: all current texts about a topic are given together; a text is logged if it was not among the topic's texts before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from cni_calico.log import Log


class Said:
    """The last texts of each topic. For one thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._texts: dict[Hashable, tuple[str, ...]] = {}

    def say(self, topic: Hashable, texts: Iterable[str], level: str = "warning", *, more: str = "") -> None:
        """Give all texts that hold now for a topic, none if there is no problem. ``more`` is logged after a text and
        may vary.
        """
        before, now = self._texts.get(topic, ()), tuple(texts)
        for text in now:
            if text not in before:
                self._log.write(level, text + more)
        if now:
            self._texts[topic] = now
        else:
            self._texts.pop(topic, None)

    def once(self, text: str, level: str = "warning") -> None:
        """Log a text that is not to be repeated."""
        self.say(text, [text], level)

    def texts(self, topic: Hashable) -> tuple[str, ...]:
        """The texts given last about a topic."""
        return self._texts.get(topic, ())
