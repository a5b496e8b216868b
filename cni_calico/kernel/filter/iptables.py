"""iptables in both its forms (legacy tables and nft's compatibility layer): rules read as text, changed by scripts.

Rule: scripts go through iptables-restore --noflush, so one script is one transaction per table and changes nothing that
it does not name. A legacy table is read only if the kernel has it: reading would load the module and create the table.
"""

from __future__ import annotations

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.programs import find_program, run_program

APPLY = faults.declare("iptables.apply")
VARIANTS = ("nft", "legacy")
LOCK_S = 5.0
_TABLES = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}


def find_iptables(family: int, variant: str, suffix: str) -> str:
    """The program of a variant, "" if it is not installed. Old distributions only have the legacy one, without the
    suffix.
    """
    base = "iptables" if family == 4 else "ip6tables"
    if variant == "legacy" and not any(find_program(f"{base}-{known}{suffix}") for known in VARIANTS):
        return find_program(base + suffix)
    return find_program(f"{base}-{variant}{suffix}")


def is_installed(family: int, variant: str) -> bool:
    return bool(find_iptables(family, variant, "-restore"))


def in_use(family: int, variant: str) -> bool:
    """Whether reading this variant's rules cannot create tables that did not exist."""
    if not is_installed(family, variant):
        return False
    if variant == "nft":
        return True
    try:
        with open(_TABLES[family]) as file:
            return bool(file.read().strip())
    except OSError:
        return False


def readable_variants() -> list[tuple[int, str]]:
    """The families and variants whose rules can be read without creating tables."""
    return [(family, variant) for family in (4, 6) for variant in VARIANTS if in_use(family, variant)]


def read_rules(family: int, variant: str, deadline: Deadline) -> str:
    """The output of iptables-save for all tables. Raises KernelError."""
    argv = [find_iptables(family, variant, "-save")]
    return run_program(argv, b"", deadline).decode(errors="replace")


def apply_rules(family: int, variant: str, script: str, deadline: Deadline, *, lock_s: float = LOCK_S) -> None:
    """Execute an iptables-restore script, waiting up to ``lock_s`` for iptables' lock. Raises KernelError."""
    program = find_iptables(family, variant, "-restore")
    if not program:
        raise KernelError(f"cannot apply IPv{family} iptables rules: the {variant} iptables is not installed")
    with Doing("apply iptables rules"):
        faults.before(APPLY)
        run_program([program, "--noflush", "-w", str(max(1, round(lock_s)))], script.encode(), deadline)
        faults.after(APPLY)
