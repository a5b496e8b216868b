"""What is wrong is logged once for as long as it stays so, not at every attempt.

Rule: what is wrong about a topic is said as a whole; a text is logged when it was not among the topic's texts before.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.log import Log


class Said:
    """By topic, what was said last. One thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._texts: dict[str, tuple[str, ...]] = {}

    def say(self, topic: str, texts: Iterable[str], level: str = "warning") -> None:
        """These texts hold now; none: all is well."""
        before, now = self._texts.get(topic, ()), tuple(texts)
        for text in now:
            if text not in before:
                self._log.write(level, text)
        self._texts[topic] = now

    def once(self, text: str, level: str = "warning") -> None:
        """A text that is said no second time."""
        self.say(text, [text], level)

    def texts(self, topic: str) -> tuple[str, ...]:
        """What was said last about a topic."""
        return self._texts.get(topic, ())
