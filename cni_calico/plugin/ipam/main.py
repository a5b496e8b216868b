"""Entry point of ``calico-ipam``."""

from __future__ import annotations

import sys

from cni_calico.plugin.call.shim import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_calico.plugin.call.shim import Serve


def _load() -> Serve:
    from cni_calico.plugin.ipam.commands import serve

    return serve


def _upgrade(stdin: bytes) -> int:
    import os

    from cni_calico.plugin.ipam.upgrade import run_upgrade

    return run_upgrade(os.environ)


def main() -> int:
    """Serve one CNI IPAM call described by the environment and stdin; the exit status."""
    return run("calico-ipam", sys.argv[1:], _load, {"-upgrade": _upgrade})


if __name__ == "__main__":
    sys.exit(main())
