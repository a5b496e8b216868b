"""PURE: the parameter that limits how many rules of the packet filter a policy may need. Rule: its default is
calicoctl's, too (policy/budget.py).
"""

from __future__ import annotations

from cni_calico.daemon.settings_table import number
from cni_calico.policy.budget import DEFAULT as DEFAULT_BUDGET

__all__ = ["BUDGET", "BUDGET_MEANING", "DEFAULT_BUDGET"]

BUDGET = number(1, 10_000_000)
BUDGET_MEANING = (
    "Not a parameter of upstream's. How many rules of the packet filter a policy may need in one family, counted from "
    "its text; one that may need more denies what it governs."
)
