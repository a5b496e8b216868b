"""Entry point of ``calico-netavark``, which podman and netavark call: create, setup NETNS, teardown NETNS, info.

Rule: stdout has the answer to a verb and nothing else; an error is ``{"error": TEXT}`` there, as netavark reads it, and
status 1.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cni_calico import BUILD, __version__
from cni_calico.bounded import CONFIG_BYTES, read_bytes
from cni_calico.errors import CalicoError, InvalidConfig, InvalidEnvironment
from cni_calico.netavark.calls import Plugins
from cni_calico.netavark.documents import parse_document, parse_membership, plan_network, render_status

API_VERSION = "1.0.0"
USAGE = "calico-netavark create | setup NETNS | teardown NETNS | info; podman calls it (docs/podman.md)"


def answer(arguments: Sequence[str], stdin: bytes, plugins: Plugins) -> Mapping[str, Any] | None:
    """The document to print; None for a verb without output. Raises CalicoError."""
    match list(arguments):
        case ["info"]:
            return {"version": f"{__version__}{BUILD}", "api_version": API_VERSION}
        case ["create"]:
            return plan_network(parse_document(stdin))
        case ["setup", netns]:
            membership = parse_membership(parse_document(stdin))
            return render_status(plugins.set_up(netns, membership), membership.interface)
        case ["teardown", netns]:
            plugins.tear_down(netns, parse_membership(parse_document(stdin)))
            return None
        case _:
            raise InvalidEnvironment(f"cannot do {' '.join(arguments) or 'nothing'!r}", details=USAGE)


def _read_stdin() -> bytes:
    try:
        return read_bytes("/dev/stdin", limit=CONFIG_BYTES)
    except OSError as e:
        raise InvalidConfig(f"cannot read stdin: {e.strerror}") from e


def main() -> int:
    """The exit status."""
    words = sys.argv[1:]
    if words in (["-v"], ["--version"]):
        sys.stdout.write(f"v{__version__}{BUILD}\n")
        return 0
    if words and words[0] in ("-h", "--help"):
        sys.stdout.write(f"usage: {USAGE}\n")
        return 0
    plugins = Plugins(str(Path(sys.executable).resolve().parent), os.environ)
    try:
        said = answer(words, b"" if words[:1] == ["info"] else _read_stdin(), plugins)
    except CalicoError as e:
        said, status = {"error": f"{e}: {e.details}" if e.details else str(e)}, 1
    else:
        status = 0
    if said is not None:
        sys.stdout.write(json.dumps(said) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
