"""Entry point of ``calico``."""

from __future__ import annotations

import sys

from cni_calico.plugin.call.shim import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_calico.plugin.call.shim import Serve


def _load() -> Serve:
    from cni_calico.plugin.commands import serve

    return serve


def _test_datastore(stdin: bytes) -> int:
    from cni_calico.plugin.try_datastore import run_datastore_test

    return run_datastore_test(stdin)


def main() -> int:
    """Serve one CNI call described by the environment and stdin; the exit status."""
    return run("calico", sys.argv[1:], _load, {"-t": _test_datastore})


if __name__ == "__main__":
    sys.exit(main())
