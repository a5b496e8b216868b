"""PURE: masquerading as scripts for nftables and for legacy iptables.

Rule: a script replaces everything of ours and nothing else, and has the same effect whatever was there before. Table
``calico`` of each family is entirely ours (including upstream's of that name); in iptables the names of our chains
begin with "calico-".
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.nodeagent.dataplane.desired import Nat

TABLE = "calico"
FAMILY = {4: "ip", 6: "ip6"}
CHAIN, OUT_CHAIN = "calico-nat-outgoing", "calico-nat-masquerade"
_ADDRESS = {4: "ipv4_addr", 6: "ipv6_addr"}
_SRCNAT = 100


def render_nftables(nat: Nat) -> str:
    """The script for ``nft -f``: afterwards the table exists exactly if something is masqueraded."""
    family = FAMILY[nat.family]
    lines = [f"add table {family} {TABLE}", f"delete table {family} {TABLE}"]
    if not nat.sources:
        return "\n".join(lines) + "\n"
    lines += [
        f"table {family} {TABLE} {{",
        *_set("nat-sources", nat.family, nat.sources),
        *_set("nat-exclusions", nat.family, nat.exclusions),
        "  chain nat-outgoing {",
        f"    type nat hook postrouting priority {_SRCNAT}; policy accept;",
        *(f"    {_out(nat)}{family} saddr @nat-sources {family} daddr != @nat-exclusions {v}" for v in _verdicts(nat)),
        "  }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _set(name: str, family: int, networks: Iterable[object]) -> list[str]:
    elements = ", ".join(map(str, networks))
    return [
        f"  set {name} {{",
        f"    type {_ADDRESS[family]}; flags interval;",
        f"    elements = {{ {elements} }}",
        "  }",
    ]


def _out(nat: Nat) -> str:
    pattern = nat.out_interface
    if not pattern:
        return ""
    return f'oifname "{pattern[:-1]}*" ' if pattern.endswith("+") else f'oifname "{pattern}" '


def _verdicts(nat: Nat) -> list[str]:
    """Ports can be chosen for TCP and UDP only; other protocols are masqueraded without."""
    random = " fully-random" if nat.random else ""
    plain = f"masquerade{random}" if nat.to is None else f"snat to {nat.to}{random}"
    if nat.ports is None:
        return [plain]
    action = "masquerade to " if nat.to is None else f"snat to {nat.to}"
    return [f"meta l4proto {{ tcp, udp }} {action}:{nat.ports[0]}-{nat.ports[1]}{random}", plain]


def render_iptables(nat: Nat, jump_is_there: bool, insert: bool) -> str:
    """The script for ``iptables-restore --noflush``; it replaces our chains and adds a missing jump to them."""
    lines = ["*nat", f":{CHAIN} - [0:0]", f":{OUT_CHAIN} - [0:0]"]
    lines += [f"-A {CHAIN} -s {source} -j {OUT_CHAIN}" for source in nat.sources]
    lines += [f"-A {OUT_CHAIN} -d {network} -j RETURN" for network in nat.exclusions]
    out = f"-o {nat.out_interface} " if nat.out_interface else ""
    if nat.ports:
        for protocol in ("tcp", "udp"):
            lines.append(f"-A {OUT_CHAIN} {out}-p {protocol} {_iptables_verdict(nat, nat.ports)}")
    lines.append(f"-A {OUT_CHAIN} {out}{_iptables_verdict(nat, None)}")
    if not jump_is_there:
        lines.append(f"{'-I' if insert else '-A'} POSTROUTING -j {CHAIN}")
    return "\n".join([*lines, "COMMIT"]) + "\n"


def _iptables_verdict(nat: Nat, ports: tuple[int, int] | None) -> str:
    span = f"{ports[0]}-{ports[1]}" if ports else ""
    random = " --random-fully" if nat.random else ""
    if nat.to is not None:
        return f"-j SNAT --to-source {nat.to}{':' + span if span else ''}{random}"
    return f"-j MASQUERADE{' --to-ports ' + span if span else ''}{random}"


def render_iptables_removal(saved: str) -> str:
    """The script that removes our chains; "" if ``saved`` (iptables-save) has none."""
    if f":{CHAIN} " not in saved:
        return ""
    lines = ["*nat", f":{CHAIN} - [0:0]", f":{OUT_CHAIN} - [0:0]"]
    lines += ["-D" + line[2:] for line in saved.splitlines() if line.startswith("-A ") and line.endswith(f"-j {CHAIN}")]
    return "\n".join([*lines, f"-X {CHAIN}", f"-X {OUT_CHAIN}", "COMMIT"]) + "\n"


def select_own(saved: str) -> list[str]:
    """The lines of our chains and of the jumps to them in an iptables-save text."""
    ours = (f":{CHAIN} ", f":{OUT_CHAIN} ", f"-A {CHAIN} ", f"-A {OUT_CHAIN} ")
    return [line for line in saved.splitlines() if line.startswith(ours) or line.endswith(f"-j {CHAIN}")]
