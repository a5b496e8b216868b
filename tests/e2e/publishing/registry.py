"""A registry on this host, of one of the two kinds, and what it has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import LAB_CACHE
from tests.deadlines import until

CRANE = LAB_CACHE / "bin" / "crane"
_KEPT = LAB_CACHE / "publishing"
CACHES = {"TUF_ROOT": str(_KEPT / "tuf"), "XDG_DATA_HOME": str(_KEPT), "_CONTAINERS_ROOTLESS_UID": "1"}
KINDS = ("crane", "docker-registry")
_TYPE = "application/vnd.oci.image.{}.v1+json"
_ACCEPT = {"Accept": ", ".join(_TYPE.format(kind) for kind in ("index", "manifest"))}
_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {directory}}}, delete: {{enabled: true}}}}
http: {{addr: 127.0.0.1:{port}}}
{more}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Registry:
    """``more``: lines of docker-registry's configuration; ``on_disk``: what is pushed lies below the directory (always
    with docker-registry).
    """

    kind: str
    directory: Path
    more: str = ""
    on_disk: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def prefix(self) -> str:
        return f"127.0.0.1:{self.port}/team/cni-calico"

    def start(self) -> None:
        if self.kind == "crane":
            command = [str(CRANE), "registry", "serve", "--address", f"127.0.0.1:{self.port}"]
            command += ["--disk", str(self.directory)] if self.on_disk else []
        else:
            config = self.directory / "config.yml"
            config.write_text(_CONFIG.format(directory=self.directory / "blobs", port=self.port, more=self.more))
            command = ["docker-registry", "serve", str(config)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self.answers, f"an answer of {self.kind}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """JSON below /v2/; None where there is nothing."""
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v2/{path}", headers=_ACCEPT)
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            if e.code != 404:
                raise
            return None

    def tags(self) -> dict[str, str]:
        """``REPOSITORY:TAG`` -> digest, those of signatures included."""
        found = {}
        for repository in (self.get("_catalog") or {}).get("repositories") or []:
            for tag in (self.get(f"{repository}/tags/list") or {}).get("tags") or []:
                found[f"{repository}:{tag}"] = self.digest(f"{repository}:{tag}")
        return found

    def digest(self, name: str) -> str:
        command = [CRANE, "digest", f"127.0.0.1:{self.port}/{name}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def versions(self) -> dict[str, str]:
        """The tags that are no signatures."""
        return {name: digest for name, digest in self.tags().items() if ":sha256-" not in name}


@contextmanager
def running(kind: str, directory: Path, more: str = "", *, on_disk: bool = False, port: int = 0) -> Iterator[Registry]:
    directory.mkdir(parents=True, exist_ok=True)
    registry = Registry(kind, directory, more, on_disk, port or free_port())
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()


def environment(**more: str) -> dict[str, str]:
    """Ours, with cosign and crane to be found, and with no login of the user's. What cosign and skopeo keep is not
    written to ~/.sigstore and /var/lib/containers; skopeo takes itself for another user for that.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("REGISTRY_", "COSIGN_", "SIGNING_"))
    }
    return {**kept, **CACHES, "PATH": f"{os.environ['PATH']}:{LAB_CACHE / 'bin'}", **more}
