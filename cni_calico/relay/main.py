"""Entry point of ``calico-typha``.

Rule: the only module here that prints and decides the exit status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

USAGE = 2
_USAGE = """usage: calico-typha [-v]

Follows the API server for many nodes' agents. Settings are environment variables, TYPHA_...: see docs/scale.md.
"""


def main() -> int:
    """Run until a signal; returns the exit status."""
    return run(sys.argv[1:], os.environ)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    words = list(arguments)
    if words and words[0] in ("-h", "-help", "--help"):
        sys.stdout.write(_USAGE)
        return 0
    if words in (["-v"], ["--version"], ["-version"]):
        from cni_calico import BUILD, __version__

        sys.stdout.write(f"v{__version__}{BUILD}\n")
        return 0
    if any(word.split("=")[0] in ("-c", "--config-file") for word in words):
        sys.stderr.write(f"calico-typha: there is no configuration file: set TYPHA_ variables\n{_USAGE}")
        return USAGE
    if words:
        sys.stderr.write(f"calico-typha: there is no argument {words[0]!r}\n{_USAGE}")
        return USAGE
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment
    from cni_calico.relay.run import run_relay

    install_from_environment(environ)
    try:
        return run_relay(environ)
    except CalicoError as e:
        lines = [str(e), *([e.details] if e.details else [])]
        sys.stderr.write("".join(f"calico-typha: {line}\n" for line in lines))
        return 1


if __name__ == "__main__":
    sys.exit(main())
