"""A headless Chromium that is asked what it shows, over the pipe of its DevTools protocol.

Rule: nothing is read from the network; every answer is waited for, with a limit.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = "/usr/bin/chromium"
PATIENCE_S = 90.0
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")


class Browser:
    """One page. ``events`` are those that came while answers were awaited."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while (answer := self._next(end)).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reading], (), (), max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._reading, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def of(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def open(self, page: Path, *, scheme: str, width: int, height: int) -> None:
        """Returns when it is loaded."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=page.as_uri())
        end = time.monotonic() + PATIENCE_S
        while not self.of("Page.loadEventFired"):
            self.events.append(self._next(end))

    def evaluate(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    command = ["bash", "-c", script, "browser", CHROMIUM, *FLAGS, f"--user-data-dir={directory}/profile", "about:blank"]
    with open(directory / "browser.log", "wb") as log:
        process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
