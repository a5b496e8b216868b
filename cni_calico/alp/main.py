"""Entry point of ``calico-alp``: allows or refuses an Envoy's requests by the policies of its pod.

Rule: the only module here that prints and decides the exit status.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

_CALL_S, _GRACE_S = 5.0, 5.0
_SERVICE, _AGENT = "/var/run/dikastes/dikastes.sock", "/var/run/felix/nodeagent/socket"


def main() -> int:
    """Run until a signal, or answer one question; returns the exit status."""
    return run(sys.argv[1:], os.environ)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    given = _make_parser().parse_args(arguments)
    if given.version:
        from cni_calico import BUILD, __version__

        sys.stdout.write(f"v{__version__}{BUILD}\n")
        return 0
    from cni_calico.errors import CalicoError

    commands = {"server": _serve, "client": _ask, "ready": _probe}
    try:
        return commands[given.command](given, environ)
    except CalicoError as e:
        lines = [str(e), *([e.details] if e.details else [])]
        sys.stderr.write("".join(f"calico-alp: {line}\n" for line in lines))
        return 2


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "calico-alp", description="Allows or refuses requests by policies with http rules (docs/http-policy.md).",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("-v", "--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    server = commands.add_parser("server", help="answer an Envoy's questions", allow_abbrev=False)
    server.add_argument("-l", "--listen", default=_SERVICE, metavar="PATH", help="socket for Envoy (%(default)s)")
    server.add_argument("-d", "--dial", default=_AGENT, metavar="PATH", help="the agent's socket (%(default)s)")
    server.add_argument(
        "--hold", type=_seconds, metavar="SECONDS",
        help="refuse all requests when nothing was heard of the agent for so long (never)",
    )  # fmt: skip
    server.add_argument("--debug", action="store_true", help="log what decided each request")
    client = commands.add_parser("client", help="ask as an Envoy would", allow_abbrev=False)
    client.add_argument("namespace", metavar="NAMESPACE", help="of the service account that asks")
    client.add_argument("account", metavar="ACCOUNT", help="its name")
    client.add_argument("--method", default="GET", help="(%(default)s)")
    client.add_argument("--path", default="/", help="(%(default)s)")
    client.add_argument("--from", dest="source", type=ip_address, metavar="ADDRESS", help="of the pod that asks")
    client.add_argument("--port", type=int, default=80, help="the port that is asked (%(default)s)")
    ready = commands.add_parser("ready", help="exit with 0 if requests are judged by policies", allow_abbrev=False)
    for asking in (client, ready):
        asking.add_argument("-d", "--dial", default=_SERVICE, metavar="PATH", help="calico-alp's socket (%(default)s)")
    parser.set_defaults(command="server", listen=_SERVICE, dial=_AGENT, hold=None, debug=False)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds < math.inf:
        raise argparse.ArgumentTypeError("it must be a number of seconds from 1")
    return seconds


def _serve(given: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Raises CannotListen, InvalidConfig."""
    from threading import Thread

    from cni_calico.alp.following import FollowedPolicies
    from cni_calico.alp.serving import CheckServer
    from cni_calico.daemon.stopping import Stopping
    from cni_calico.log import Log, wants_json

    log = Log("debug" if given.debug else "info", as_json=wants_json(environ))
    policies = FollowedPolicies(given.dial, given.hold, log)
    server = CheckServer(given.listen, policies, log)
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    server.start()
    log.info(f"answering at {given.listen} by what the agent says at {given.dial}")
    following = Thread(target=policies.run)
    following.start()
    stopping.wait()
    server.stop(_GRACE_S)
    policies.stop()
    following.join()
    return 0


def _ask(given: argparse.Namespace, _: Mapping[str, str]) -> int:
    """Prints OK, or what else gRPC calls it. Raises CannotAsk."""
    from cni_calico.alp.asked import ALLOWED, DENIED, AskedPeer, AskedRequest, encode_check, parse_answer
    from cni_calico.alp.asking import ask
    from cni_calico.alp.serving import CHECK

    principal = f"spiffe://cluster.local/ns/{given.namespace}/sa/{given.account}"
    source = AskedPeer(given.source, 0 if given.source else None, principal)
    asked = ip_address("::" if given.source is not None and given.source.version == 6 else "0.0.0.0")  # any
    request = AskedRequest(source, AskedPeer(asked, given.port), method=given.method, path=given.path)
    code = parse_answer(ask(given.dial, CHECK, encode_check(request), _CALL_S))
    sys.stdout.write({ALLOWED: "OK", DENIED: "PERMISSION_DENIED"}.get(code, "UNAVAILABLE") + "\n")
    return int(code != ALLOWED)


def _probe(given: argparse.Namespace, _: Mapping[str, str]) -> int:
    """Raises CannotAsk."""
    from cni_calico.alp.asked import parse_health
    from cni_calico.alp.asking import ask
    from cni_calico.alp.serving import HEALTH

    return int(not parse_health(ask(given.dial, HEALTH, b"", _CALL_S)))


if __name__ == "__main__":
    sys.exit(main())
