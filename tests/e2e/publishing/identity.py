"""Services for signatures without a key, on this machine, and the identity that they vouch for.

Rule: cosign talks to them as to Sigstore's own, and believes them alone: their keys are in a file that is given to it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.lab.host import end, start

ISSUER = "https://token.actions.githubusercontent.com"
WORKFLOW = "team/cni-calico/.github/workflows/release.yml@refs/tags/v0.1.0"
IDENTITY = f"https://github.com/{WORKFLOW}"


@dataclass(frozen=True)
class Identity:
    """``directory``: with the files of the services."""

    directory: Path

    @property
    def trusted_root(self) -> Path:
        return self.directory / "trusted_root.json"

    @property
    def trust(self) -> tuple[str | Path, ...]:
        """Options of verify.sh and mirror.sh."""
        return ("--identity", IDENTITY, "--trusted-root", self.trusted_root)

    def settings(self, workflow: str = WORKFLOW) -> dict[str, str]:
        """What a workflow's line has in its environment."""
        claims = {"sub": f"https://github.com/{workflow}", "iss": ISSUER, "aud": "sigstore", "exp": 4102444800}
        token = ".".join(_encoded(part) for part in ({"alg": "none"}, claims, {}))
        files = {"SIGNING_CONFIG": str(self.directory / "signing_config.json"), "TRUSTED_ROOT": str(self.trusted_root)}
        return {"GITHUB_WORKFLOW_REF": workflow, "SIGSTORE_ID_TOKEN": token, **files}


def _encoded(part: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


@contextmanager
def vouching(directory: Path) -> Iterator[Identity]:
    """The services, until the end."""
    directory.mkdir()
    process = start(directory / "log", LAB_CACHE / "bin" / "sigstore-here", directory)
    try:
        until((directory / "signing_config.json").exists, f"the services; see {directory}/log", pause_s=0.1)
        yield Identity(directory)
    finally:
        end(process)
