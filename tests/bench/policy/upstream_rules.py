"""PURE: twenty policies of ten rules as upstream's agent programs them, as text that can be loaded.

Rule: everything around the policies is a dump of upstream's agent (tests/upstream_rules.py), and so is the form of a
rule, of a policy and of a group of policies with one selector; only how often they stand there is of this module. In
a group upstream looks for a verdict after every five policies.
"""

from __future__ import annotations

import re

from tests.upstream_rules import iptables_scripts, nft_script

POLICIES, RULES, STRIDE = 20, 10, 5
MEMBERS = 20  # of the set that a rule names
_CASE, _POLICY, _NFT_POLICY = "02-kubernetes-style", "cali-pi-_kMZT6bzNwqeiab0D1tV", "np/default/knp.default.web"


def numbers(rule: int) -> tuple[int, int, int]:
    """A rule's ports: one, and a range from the second to the third."""
    return 2000 + rule, 3000 + 10 * rule, 3005 + 10 * rule


def members(rule: int) -> list[str]:
    """Addresses of nobody."""
    return [f"10.99.{rule}.{2 * number + 1}" for number in range(MEMBERS)]


def by_iptables(probing: str, probed: str) -> tuple[str, str]:
    """For ``ipset restore`` and ``iptables-legacy-restore``; the policies are those of ``probed``'s ingress."""
    sets, rules = iptables_scripts(_CASE, {"calia": probing, "calib": probed})
    for rule in range(RULES):
        sets += f"create cali40s:none{rule} hash:net family inet\n"
        sets += "".join(f"add cali40s:none{rule} {address}\n" for address in members(rule))
    chains, lines = [":cali-gi-bench -"], []
    for policy in range(POLICIES):
        if policy and policy % STRIDE == 0:
            lines.append("-A cali-gi-bench -m mark ! --mark 0x0/0x30000 -j RETURN")
        unless = "-m mark --mark 0x0/0x30000 " if policy % STRIDE else ""
        lines.append(f"-A cali-gi-bench {unless}-j cali-pi-bench{policy}")
        chains.append(f":cali-pi-bench{policy} -")
        for rule in range(RULES):
            one, low, high = numbers(rule)
            match = f"-p udp -m set --match-set cali40s:none{rule} src -m multiport --dports {one},{low}:{high}"
            lines.append(f"-A cali-pi-bench{policy} {match} -j MARK --set-xmark 0x10000/0x10000")
            lines.append(f"-A cali-pi-bench{policy} -m mark --mark 0x10000/0x10000 -j RETURN")
    lines.append(f"-A cali-pi-bench{POLICIES - 1} -p udp -j MARK --set-xmark 0x10000/0x10000")
    head, table, tail = rules.partition("*filter\n")
    before, commit, after = tail.partition("COMMIT\n")
    before = before.replace(f"0x0/0x20000 -j {_POLICY}", "0x0/0x20000 -j cali-gi-bench")
    declared, first, rest = before.partition("-A ")
    text = declared + "".join(f"{chain}\n" for chain in chains) + first + rest
    return sets, head + table + text + "".join(f"{line}\n" for line in lines) + commit + after


def by_nft(probing: str, probed: str) -> str:
    """For ``nft -f``; the policies are those of ``probed``'s ingress."""
    text = nft_script(_CASE, {"calia": probing, "calib": probed})
    kind = "type ipv4_addr; flags interval; elements ="
    made = [f"add set ip calico cali40s-none{r} {{ {kind} {{ {', '.join(members(r))} }}; }}" for r in range(RULES)]
    chains = ["filter-cali-gi-bench", *(f"filter-cali-pi-bench{policy}" for policy in range(POLICIES))]
    made += [f"add chain ip calico {chain}" for chain in chains]
    accept = "meta mark set meta mark | 0x00010000"
    for policy in range(POLICIES):
        group, chain = "add rule ip calico filter-cali-gi-bench", f"filter-cali-pi-bench{policy}"
        if policy and policy % STRIDE == 0:
            made.append(f"{group} meta mark & 0x00030000 != 0x00000000 return")
        unless = "meta mark & 0x00030000 == 0x00000000 " if policy % STRIDE else ""
        made.append(f"{group} {unless}jump {chain}")
        for rule in range(RULES):
            one, low, high = numbers(rule)
            match = f"ip saddr @cali40s-none{rule} udp dport {{ {one}, {low}-{high} }}"
            made.append(f"add rule ip calico {chain} {match} {accept}")
            made.append(f"add rule ip calico {chain} meta mark & 0x00010000 == 0x00010000 return")
    made.append(f"add rule ip calico filter-cali-pi-bench{POLICIES - 1} meta l4proto udp {accept}")
    declarations = "\n".join(made[: RULES + len(chains)])
    group = re.escape(f"jump filter-cali-pi-{_NFT_POLICY}")
    text = re.sub(group, "jump filter-cali-gi-bench", text)
    first, table, rest = text.partition("table ip calico {")
    return (
        f"{first}add table ip calico\n{declarations}\n{table}{rest}\n" + "\n".join(made[RULES + len(chains) :]) + "\n"
    )
