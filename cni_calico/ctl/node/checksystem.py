"""``calicoctl node checksystem``: whether this host can be a node, and which features it lacks.

Rule: it only reads, changes nothing and loads no module. A missing feature is a failure if every node needs it, or if
a record in the datastore asks for it (asked.py); otherwise one that only some clusters need (IPIP, VXLAN, WireGuard,
SCTP, BGP) is listed with its purpose. Without a datastore that can be read nothing is asked, and that is said.
"""

from __future__ import annotations

import gzip
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cni_calico.bounded import read_text
from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.node.asked import read_asked
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import CalicoError

KERNEL = (5, 10)  # the oldest that tests/kernels runs
IPVS_INTERFACE = "/sys/class/net/kube-ipvs0"
_UNFIT = "System doesn't meet one or more minimum systems requirements to run Calico"
_CONFIG_BYTES = 8 << 20
_SEARCH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Feature:
    """A kernel feature: one of ``modules`` exists, one of ``options`` is on in its configuration, or the running kernel
    has the file ``shown_by``.
    """

    name: str
    modules: tuple[str, ...]
    options: tuple[str, ...]
    purpose: str = ""  # "": every node needs it
    shown_by: str = ""


FEATURES = (
    Feature("veth", ("veth",), ("CONFIG_VETH",)),
    Feature("packet filter", ("nf_tables", "ip_tables"), ("CONFIG_NF_TABLES", "CONFIG_IP_NF_IPTABLES")),
    Feature("connection tracking", ("nf_conntrack",), ("CONFIG_NF_CONNTRACK",)),
    Feature("NAT", ("nf_nat",), ("CONFIG_NF_NAT",), "pools with natOutgoing"),
    Feature("ipip", ("ipip",), ("CONFIG_NET_IPIP",), "pools with ipipMode"),
    Feature("vxlan", ("vxlan",), ("CONFIG_VXLAN",), "pools with vxlanMode"),
    Feature(
        "sctp",
        ("nf_conntrack_proto_sctp",),
        ("CONFIG_NF_CT_PROTO_SCTP",),
        "policies with SCTP",
        "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed",
    ),
    Feature("wireguard", ("wireguard",), ("CONFIG_WIREGUARD",), "encryption"),
)
PROGRAMS = (
    ("packet filter program", ("nft", "iptables"), "masquerading and policy"),
    ("BIRD", ("bird",), "BGP (CALICO_NETWORKING_BACKEND=bird)"),
)


def check(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed if something is missing that every node needs."""
    release = os.uname().release
    has = _kernel_features(arguments.kernel_config, release)
    checks = [*_basics(release), *_features(has, _asked(arguments, environ)), *_programs(), *_surroundings()]
    if arguments.output != TABLE:
        return _document(checks, arguments.output)
    lines, failed = [], []
    for each in checks:
        lines.append(f"{each.name + ':':30}{each.state}")
        failed += [each.name] if each.fails else []
    text = "\n".join(lines) + "\n"
    if failed:
        raise CommandFailed(_UNFIT, output=text)
    return text + "System meets minimum system requirements to run Calico!\n"


def _document(checks: list[SystemCheck], output: str) -> str:
    """Raises CommandFailed as ``check`` does."""
    fit = not any(each.fails for each in checks)
    rows = [each.document() for each in checks]
    text = render_value({"meetsRequirements": fit, "checks": rows}, output)
    if not fit:
        raise CommandFailed(_UNFIT, output=text)
    return text


@dataclass(frozen=True, slots=True)
class SystemCheck:
    """``purpose``: "" for what every node needs. ``asked_by``: the records that ask for it. ``instead``: what is said
    of something that is there and should not be.
    """

    name: str
    found: bool
    purpose: str = ""
    asked_by: str = ""
    instead: str = ""

    @property
    def fails(self) -> bool:
        return not self.found and not self.instead and (not self.purpose or bool(self.asked_by))

    @property
    def state(self) -> str:
        if self.found:
            return "OK"
        if self.fails:
            return f"FAIL, needed for {self.asked_by}" if self.asked_by else "FAIL"
        return self.instead or f"missing, only needed for {self.purpose}"

    def document(self) -> dict[str, object]:
        asked = {"askedBy": self.asked_by} if self.asked_by else {}
        return {"name": self.name, "found": self.found, "neededFor": self.purpose or "every node", **asked}


def _asked(arguments: Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Nothing, with a note, if the datastore cannot be read."""
    try:
        with open_session(arguments, environ) as session:
            return read_asked(session)
    except CalicoError as e:
        arguments.note(f"What is configured could not be looked at, so all features are only listed: {e}")
        return {}


def _basics(release: str) -> list[SystemCheck]:
    wanted = ".".join(map(str, KERNEL))
    return [
        SystemCheck(f"kernel {release} >= {wanted}", is_new_enough(release)),
        SystemCheck("IPv4 forwarding", os.path.exists("/proc/sys/net/ipv4/ip_forward")),
        SystemCheck("IPv6", os.path.exists("/proc/sys/net/ipv6/conf/all/forwarding"), "IPv6 pools"),
        SystemCheck("network namespaces", os.path.exists("/proc/self/ns/net")),
    ]


def _features(has: Callable[[Feature], bool], asked: Mapping[str, str]) -> list[SystemCheck]:
    return [
        SystemCheck(feature.name, has(feature), feature.purpose, asked.get(feature.name, "")) for feature in FEATURES
    ]


def _surroundings() -> list[SystemCheck]:
    if not os.path.exists(IPVS_INTERFACE):
        return []
    said = "kube-proxy runs in mode ipvs, which needs nftables in the agent: with legacy iptables use mode iptables"
    return [SystemCheck("ip_vs", False, "kube-proxy's mode ipvs", instead=said)]


def _programs() -> list[SystemCheck]:
    found = []
    for what, names, purpose in PROGRAMS:
        there = any(os.access(f"{directory}/{name}", os.X_OK) for directory in _SEARCH for name in names)
        found.append(SystemCheck(what, there, purpose))
    return found


def is_new_enough(release: str) -> bool:
    """PURE: whether a kernel's release, such as "6.1.0-18-amd64", is at least KERNEL."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= KERNEL


# -- the kernel -------------------------------------------------------------------------------------------------------


def _kernel_features(config: str, release: str) -> Callable[[Feature], bool]:
    if config:
        switched_on = parse_kernel_config(read_file(config, what="kernel configuration", limit=_CONFIG_BYTES))
        return lambda feature: any(option in switched_on for option in feature.options)
    switched_on = parse_kernel_config(_read_kernel_config(release))
    modules = _modules(release)
    return lambda feature: (
        any(option in switched_on for option in feature.options)
        or any(module in modules or os.path.isdir(f"/sys/module/{module}") for module in feature.modules)
        or bool(feature.shown_by and os.path.exists(feature.shown_by))
    )


def parse_kernel_config(text: str) -> frozenset[str]:
    """PURE: the options that are built in or modules."""
    return frozenset(line.partition("=")[0] for line in text.splitlines() if line.rstrip().endswith(("=y", "=m")))


def _read_kernel_config(release: str) -> str:
    try:
        with gzip.open("/proc/config.gz", "rt") as file:
            return file.read(_CONFIG_BYTES)
    except OSError:
        pass
    try:
        return read_text(f"/boot/config-{release}", limit=_CONFIG_BYTES)
    except (OSError, ValueError):
        return ""  # then only the modules are looked at


def _modules(release: str) -> frozenset[str]:
    """The names of the modules that exist or are built in, as the kernel spells them."""
    found: set[str] = set()
    for name in ("modules.builtin", "modules.dep"):
        path = Path(f"/lib/modules/{release}/{name}")
        try:
            found |= set(module_names(path.read_text().splitlines()))
        except OSError:
            continue
    return frozenset(found)


def module_names(lines: Iterable[str]) -> Iterable[str]:
    """PURE: names of modules from lines such as "kernel/net/ipv4/ipip.ko.xz: ..."."""
    for line in lines:
        file = line.partition(":")[0].strip().rpartition("/")[2]
        if ".ko" in file:
            yield file.partition(".ko")[0].replace("-", "_")
