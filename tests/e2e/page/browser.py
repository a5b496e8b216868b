"""A headless Chromium that is asked what it shows, over the pipe of its DevTools protocol.

Rule: nothing is read from the network; every answer is waited for, with a limit.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deadlines import until

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

    def open(self, page: Path | str, *, scheme: str, width: int, height: int) -> None:
        """Returns when it is loaded."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        end = time.monotonic() + PATIENCE_S
        while not self.of("Page.loadEventFired"):
            self.events.append(self._next(end))

    def evaluate(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str, what: str = "") -> Any:
        """The first true value of the script."""
        return until(lambda: self.evaluate(script), what or script)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        """A key is the character that it types, or its name."""
        for key in keys:
            typed = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            named = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}.get(key)
            event: dict[str, Any] = {"key": key, **({"text": typed} if typed else {})}
            if named:
                event |= {"code": key, "windowsVirtualKeyCode": named}
            self.ask("Input.dispatchKeyEvent", type="keyDown", **event)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, selector: str) -> None:
        """The middle of the first one, once it stays where it is."""
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        before: list[float] = []

        def stays() -> bool:
            was, before[:] = before[:], self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
            return was == before

        until(stays, f"{selector} stays where it is", pause_s=0.05)
        x, y = before
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, **options: Any) -> bytes:
        """What is seen, or ``clip`` of it, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png", **options)["data"])


@contextmanager
def running_browser(directory: Path, *flags: str) -> Iterator[Browser]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    given = (*FLAGS, *flags, f"--user-data-dir={directory}/profile", "about:blank")
    command = ["bash", "-c", script, "browser", CHROMIUM, *given]
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
