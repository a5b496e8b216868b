"""PURE: the command line of calico-node, in the notation of Go's flag package, as existing deployments use it.

Rule: one dash or two, "-flag", "-flag=value" or, where a value is needed, "-flag value"; unknown ones are an error.
Imports nothing: probes start often.
"""

from __future__ import annotations

SERVICES = {
    "felix": "maintain this node's data plane",
    "confd": "configure and run BIRD",
    "allocate-tunnel-addrs": "maintain this node's tunnel addresses",
    "monitor-addresses": "detect the node's address again from time to time",
    "monitor-token": "renew the CNI plugin's credentials",
    "complete-startup": "tell Kubernetes that this node's network is available, once it is",
    "status-reporter": "fill the CalicoNodeStatus resources that name this node",
}
COMMANDS = {
    "run": "set the node up and run everything, supervised (also: calico-node run)",
    "node-services": "the same as -run without -startup",
    "cni-server": "serve the CNI plugin's calls",
    "flow-recorder": "record flows, as the agent's child (FELIX_FLOWS)",
    "flows-pipe": "answer a question about recorded flows, for calicoctl flows from elsewhere",
    "rehearse": "say what this version would change here, and change nothing (for calicoctl cluster rehearse)",
    "startup": "set this node up",
    "init": "prepare the host",
    "boot-table": "close workloads' interfaces until the agent has decided what may pass",
    "hostpath-init": "make the directories on the host",
    "allocate-tunnel-addrs-run-once": "put the tunnel addresses in order once",
    "confd-run-once": "configure BIRD once; a BIRD that does not run is started, and stays when the command has ended",
    "shutdown": "tell Kubernetes that this node's network is going away",
    "show-status": "show the state of this node",
    "v": "show the version",
}
PROBES = {
    "felix-live": "exit status 0 while the agent is alive",
    "felix-ready": "exit status 0 if the agent has applied everything",
    "felix-started": "exit status 0 once the agent is ready, or has been alive for half a minute",
    "bird-live": "exit status 0 while BIRD answers",
    "bird-ready": "exit status 0 if BIRD's sessions are up",
    "bird6-live": "the same as -bird-live: one BIRD serves both families",
    "bird6-ready": "the same as -bird-ready",
}
MODIFIERS = {
    "best-effort": "with -init and -allocate-tunnel-addrs-run-once: report failures and continue",
    "confd-keep-stage-file": "accepted, without effect",
}
VALUES = {
    "flows": "show so many flows as they are exported, for ever if it is negative (FELIX_FLOWLOGSLOCALREPORTER)",
    "threshold-time": "with -bird-ready: how long after start-up every session must be up (30s)",
    "confd-confdir": "accepted, without effect: configuration files are in /etc/calico/confd/config",
}


class UsageError(Exception):
    """The text says what is wrong."""


def parse_flags(arguments: list[str]) -> tuple[set[str], dict[str, str]]:
    """(the flags that are set, the values). Raises UsageError."""
    chosen: set[str] = set()
    values: dict[str, str] = {}
    rest = list(arguments)
    if rest[:1] in (["run"], ["version"]):
        chosen.add("v" if rest.pop(0) == "version" else "run")
    known = {**SERVICES, **COMMANDS, **PROBES, **MODIFIERS}
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        dashes = len(argument) - len(argument.lstrip("-"))
        if dashes not in (1, 2) or not name:
            raise UsageError(f"unknown argument {argument!r}")
        if name in ("version", "V"):
            name = "v"
        if name in VALUES:
            if not equals:
                if not rest:
                    raise UsageError(f"flag needs a value: -{name}")
                value = rest.pop(0)
            values[name] = value
        elif name not in known:
            raise UsageError(f"unknown flag -{name}")
        elif _is_true(name, value if equals else "true"):
            chosen.add(name)
    return chosen, values


def _is_true(name: str, text: str) -> bool:
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise UsageError(f"flag -{name} is on or off, not {text!r}")


def render_usage() -> str:
    """The meaning of all flags."""
    lines = ["usage: calico-node run, or flags that select parts:"]
    for group in (COMMANDS, SERVICES, PROBES, MODIFIERS, VALUES):
        lines += [f"  -{name:32}{meaning}" for name, meaning in group.items()]
    return "\n".join(lines) + "\n"
