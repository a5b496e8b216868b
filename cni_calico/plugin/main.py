"""Entry point of ``calico``."""

from __future__ import annotations

import sys

from cni_calico.plugin.call.shim import run, write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_calico.plugin.call.shim import Serve


def _load() -> Serve:
    from cni_calico.plugin.commands import serve

    return serve


def _test_datastore(stdin: bytes) -> int:
    """0, or 1 with a CNI error on stdout and its text on stderr."""
    from cni_calico.plugin.try_datastore import try_datastore

    error = try_datastore(stdin)
    if error is None:
        return 0
    from cni_calico.cni.answer import answer_error
    from cni_calico.cni.versions import CURRENT

    sys.stderr.write(f"{error.message}\n")
    sys.stderr.flush()
    write_stdout(answer_error(error, CURRENT).stdout.encode())
    return 1


def main() -> int:
    """Serve one CNI call described by the environment and stdin; the exit status."""
    return run("calico", sys.argv[1:], _load, {"-t": _test_datastore})


if __name__ == "__main__":
    sys.exit(main())
