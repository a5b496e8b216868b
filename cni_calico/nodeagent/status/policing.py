"""PURE: the policy engine's status: one value for the status file and the probes, and figures for the metrics.

Rule: the engine's thread writes it, any thread reads it; "enforced" means in force in the kernel, not wanted. Figures
are plain counts, and a reader may see slightly old values.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Standing:
    """``decided``: everything has been read, or the reason why it cannot be read is known.

    ``in_force``: the newest state is in force, or the last one that could be applied (then ``failing`` says why the
    newest could not). ``why_not`` says why no policy is enforced; ``upstream_goes``: whether upstream's rules may be
    removed, ``upstream_stays``: they decide, and nothing of ours does. ``lost``: in words, what upstream enforces here
    and this agent would not. ``problems``: records and policies that are not in force as written; ``warnings``: parts
    of policies that are ignored; ``notes``: those of both that are about this host and not about a policy.
    ``none_exist``: as far as the engine has heard, there is none.
    ``by``: the packet filter, "nftables" or "iptables", or another data plane's driver.
    ``guarded``: tunnel devices that only nodes' packets can enter, or that need not be guarded; ``vxlan_ports``: the
    UDP ports for which that holds, None if it holds for any;
    ``unguardable``: why the packet filter refuses their rules where no policy is to be enforced, "" while it does not,
    or while that is not known. ``checks_only``: the policies that were in force last were those of a check of the
    cluster, which ends by itself. ``reports``: the rules in force report what is to be recorded of flows.
    """

    decided: bool = False
    in_force: bool = False
    ready: bool = False
    upstream_goes: bool = False
    why_not: str = "the policies have not been read yet"
    failing: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    none_exist: bool = False
    lost: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    repairs: int = 0
    by: str = "nftables"
    guarded: frozenset[str] = frozenset()
    vxlan_ports: frozenset[int] | None = None
    unguardable: str = ""
    checks_only: bool = False
    upstream_stays: bool = False
    reports: bool = False

    def for_dataplane(self) -> Standing:
        """Without what the data plane only tells others, if any is in force; else it says how many are not."""
        if not self.in_force:
            return self
        return replace(self, ready=False, warnings=(), notes=(), counts={}, repairs=0, checks_only=False, reports=False)

    def fields(self) -> dict[str, object]:
        """The fields for the status file."""
        return {
            "in_force": self.in_force,
            "ready": self.ready,
            "sentence": self.sentence,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "counts": dict(self.counts),
            "repairs": self.repairs,
            "by": self.by,
        }

    @property
    def sentence(self) -> str:
        """The status as a sentence for people."""
        if self.in_force:
            policies, endpoints = self.counts.get("policies", 0), self.counts.get("endpoints", 0)
            hosts = self.counts.get("hosts", 0)
            also = f" and {hosts} host endpoints" if hosts else ""
            driver = f" (by the data plane driver {self.by})"
            by = {"nftables": "", "iptables": " (by legacy iptables and IP sets)"}.get(self.by, driver)
            said = f"{policies} policies are in force for {endpoints} workloads{also}{by}"
            return f"{said}; newer changes are NOT in force: {self.failing}" if self.failing else said
        by_whom = "by this agent" if self.upstream_stays else "on this node"
        return f"no policy is enforced {by_whom}: {self.failing or self.why_not}"


@dataclass(slots=True)
class Durations:
    """How long something took, in seconds: by BUCKETS_S (and one above them), and the last thousand values
    themselves.
    """

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0
    last_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    def observe(self, seconds: float) -> None:
        self.buckets[sum(seconds > limit for limit in BUCKETS_S)] += 1
        self.total_s += seconds
        self.last_s.append(seconds)

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def quantile(self, part: float) -> float:
        """Of the last thousand values; 0 if there was none."""
        ordered = sorted(self.last_s)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class PolicyFigures:
    """Counts since the start, unless said otherwise.

    ``refused``: transactions; ``failures``: failed attempts to put a change into force. ``compared``: full comparisons
    with the kernel; ``found_changed``: those that found a difference; ``repairs``: those of them that another program
    was seen to cause. ``apply``: the time to put changes into force; ``change``: the time from the datastore's event to
    the last commit; ``calculation``: the time to calculate what simultaneous changes mean. ``workload_endpoints``: of
    all nodes, None while only this node's are followed. ``in_kernel``: chains, rules and sets of each family ("4", "6")
    now; ``records``: the number of known records of each kind. ``waiting_for_memory``: policies of each namespace.
    ``dropped``: packets that standing rules have counted, by the reason. ``rounds``: of the engine, by the word that
    says what for.
    """

    transactions: int = 0
    operations: int = 0
    refused: int = 0
    failures: int = 0
    compared: int = 0
    found_changed: int = 0
    repairs: int = 0
    selectors: int = 0
    apply: Durations = field(default_factory=Durations)
    change: Durations = field(default_factory=Durations)
    calculation: Durations = field(default_factory=Durations)
    workload_endpoints: int | None = None
    in_kernel: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    records: Mapping[str, int] = field(default_factory=dict)
    waiting_for_memory: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    rounds: Counter[str] = field(default_factory=Counter)
