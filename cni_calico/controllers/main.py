"""Entry point of ``calico-kube-controllers``, also named ``kube-controllers``, ``check-status`` and ``wrapper``.

Rule: the only module here that prints and decides the exit status. The name under which it is called selects what it
does, as in upstream's images; newer ones have a single program for everything and call it ``calico component
kube-controllers``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STATUS_FILE = "/status/status.json"
USAGE = 2
RESTART = 129
_CONTROLLERS = "usage: calico-kube-controllers [-v] [-status-file FILE]\n"
_CHECK = "usage: check-status [-r] [-l] [-f FILE] [-v]\n"
_WRAPPER = "usage: wrapper PROGRAM [ARGUMENT...]\n"
_WEBHOOK = (
    "usage: calico-kube-controllers webhook [--port N] [--tls-cert-file FILE --tls-private-key-file FILE]\n"
    "       [--client-ca-file FILE] [--log-level LEVEL]\n"
)
_CALICO = (
    "usage: calico component kube-controllers [-v] [-status-file FILE]\n"
    "       calico component kube-controllers kube-controllers-health [-r] [-l] [-f FILE]\n"
    "       calico component webhooks webhook [FLAG...]\n"
)
COMPONENT = ["component", "kube-controllers"]
WEBHOOKS = ["component", "webhooks"]
_WEBHOOK_FLAGS = {"port", "tls-cert-file", "tls-private-key-file", "client-ca-file", "log-level"}
_HEALTH = ("kube-controllers-health", "health")


class WrongFlag(Exception):
    """The command line contains something unknown."""


def parse_flags(arguments: Sequence[str], switches: set[str], texts: set[str]) -> dict[str, str]:
    """Go's notation: one dash or two, "-name value" or "-name=value". Raises WrongFlag."""
    found: dict[str, str] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in switches | texts:
            raise WrongFlag(f"there is no flag {word!r}")
        if name in switches:
            if value not in ("", "true", "false"):
                raise WrongFlag(f"-{name} is true or false")
            if value != "false":
                found[name] = "true"
        elif equals:
            found[name] = value
        elif left:
            found[name] = left.pop(0)
        else:
            raise WrongFlag(f"-{name} needs a value")
    return found


def main() -> int:
    """Run what the program's name selects; returns the exit status."""
    return run(Path(sys.argv[0]).name, sys.argv[1:], os.environ)


def run(program: str, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    if program != "wrapper" and list(arguments[:2]) == COMPONENT:  # also after the image's own entry point
        program, arguments = select_component(arguments[2:])
    if program != "wrapper" and list(arguments[:2]) == WEBHOOKS:
        arguments = arguments[2:]
        if list(arguments[:1]) == ["version"]:
            return _version()
    if program not in ("wrapper", "check-status") and list(arguments[:1]) == ["webhook"]:
        program, arguments = "webhook", arguments[1:]
    usage = {"check-status": _CHECK, "wrapper": _WRAPPER, "calico": _CALICO, "webhook": _WEBHOOK}.get(
        program, _CONTROLLERS
    )
    if arguments and arguments[0] in ("-h", "-help", "--help"):
        sys.stdout.write(usage)
        return 0
    try:
        if program == "check-status":
            return _check_status(arguments)
        if program == "wrapper":
            return _wrap(arguments, environ)
        if program == "calico":
            raise WrongFlag("here it runs only 'component kube-controllers' and 'component webhooks'")
        if program == "webhook":
            return _run_webhook(arguments, environ)
        return _run_controllers(arguments, environ)
    except WrongFlag as e:
        sys.stderr.write(f"{program}: {e}\n{usage}")
        return USAGE


def select_component(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The program that ``calico component kube-controllers`` and these words mean, and its arguments."""
    return ("check-status", words[1:]) if words and words[0] in _HEALTH else ("kube-controllers", words)


def _version() -> int:
    from cni_calico import BUILD, __version__

    sys.stdout.write(f"v{__version__}{BUILD}\n")
    return 0


def _run_controllers(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    flags = parse_flags(arguments, {"version", "v"}, {"status-file"})
    if "version" in flags or "v" in flags:
        return _version()
    from cni_calico.controllers.run import run_controllers
    from cni_calico.daemon.ending import leave
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment

    install_from_environment(environ)
    try:
        leave(run_controllers(flags.get("status-file", STATUS_FILE), environ))
    except CalicoError as e:
        lines = [str(e), *([e.details] if e.details else [])]
        sys.stderr.write("".join(f"calico-kube-controllers: {line}\n" for line in lines))
        return 1


def _run_webhook(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    flags = parse_flags(arguments, set(), _WEBHOOK_FLAGS)
    from cni_calico.controllers.admission.run import run_webhook
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment

    install_from_environment(environ)
    try:
        return run_webhook(flags, environ)
    except CalicoError as e:
        lines = [str(e), *([e.details] if e.details else [])]
        sys.stderr.write("".join(f"calico-webhooks: {line}\n" for line in lines))
        return 1


def _check_status(arguments: Sequence[str]) -> int:
    """-r and -l make the same check: upstream's liveness probe reads the same file."""
    flags = parse_flags(arguments, {"r", "l", "v", "readiness", "liveness", "ready", "live"}, {"f", "file"})
    if "v" in flags:
        return _version()
    from cni_calico.controllers.health import why_not_ready

    why = why_not_ready(Path(flags.get("f") or flags.get("file") or STATUS_FILE))
    sys.stdout.write(f"{why or 'Ready'}\n")
    return 1 if why else 0


def _wrap(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        raise WrongFlag("the program to run is missing")
    from cni_calico.controllers.wrapper import run_wrapped
    from cni_calico.errors import CalicoError

    try:
        return run_wrapped(arguments, environ, RESTART)
    except CalicoError as e:
        sys.stderr.write(f"wrapper: {e}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
