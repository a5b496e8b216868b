"""Entry point of ``calico-install``: puts the CNI plugin on the host of the container it runs in."""

from __future__ import annotations

import os
import signal
import sys

from cni_calico import BUILD, __version__
from cni_calico.errors import CalicoError
from cni_calico.install.run import install, keep_installed, seen_secret, wait_for
from cni_calico.install.settings import parse_settings
from cni_calico.log import Log

WRONG_USAGE = 2
_USAGE = """usage: calico-install [-v]

Puts the CNI plugin on the host of the container it runs in: executables, network configuration, kubeconfig. Settings
are environment variables, those of upstream's installer: see docs/install.md.
"""


def _bundle() -> tuple[str, str]:
    """(directory of the executables, default template)."""
    here = os.path.dirname(os.path.realpath(sys.executable if getattr(sys, "frozen", False) else sys.argv[0]))
    directory = os.environ.get("CALICO_BUNDLE_DIR") or here
    template = os.environ.get("CALICO_CNI_TEMPLATE") or f"{directory}/10-calico.conflist.template"
    return directory, template


def main() -> int:
    """Install once, and keep running unless SLEEP is false; returns the exit status."""
    words = sys.argv[1:]
    if words in (["-v"], ["-version"], ["--version"]):
        print(f"v{__version__}{BUILD}")
        return 0
    if words and words[0] in ("-h", "-help", "--help"):
        print(_USAGE, end="")
        return 0
    if any(word.startswith("-") for word in words):
        print(f"calico-install: cannot use {' '.join(words)!r}\n{_USAGE}", end="", file=sys.stderr)
        return WRONG_USAGE
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(1))
    log = Log(os.environ.get("LOG_LEVEL", "info").lower())
    try:
        directory, template = _bundle()
        settings = parse_settings(os.environ, bundle=directory, template_file=template)
        seen = seen_secret(settings)  # before the files are copied: what changes meanwhile is copied again
        token = install(settings, log)
    except CalicoError as e:
        log.error(f"{e.message}" + (f" ({e.details})" if e.details else ""))
        return 1
    log.info("the CNI plugin is installed")
    if settings.sleep:
        keep_installed(settings, log, token, seen, wait=wait_for(lambda: bool(stopped)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
