"""PURE: the parameters that limit what policies may cost: rules of the packet filter, and memory. Rule: the default of
the first is calicoctl's, too (policy/budget.py).
"""

from __future__ import annotations

from cni_calico.daemon.settings_table import number
from cni_calico.policy.budget import DEFAULT
from cni_calico.policy.room import TOTAL

RULE_BUDGET = (
    number(1, 10_000_000),
    DEFAULT,
    "Not a parameter of upstream's. How many rules of the packet filter a policy may need in one family, counted from "
    "its text; one that may need more denies what it governs.",
)
RULE_TOTAL = (
    number(1, 100_000_000),
    TOTAL,
    "Not a parameter of upstream's. How many rules of the packet filter the policies of all namespaces may need "
    "together on a node, in one family; beyond that the largest policies of the namespaces that need most deny what "
    "they govern.",
)
MEMORY_LIMIT = (
    number(0, 1 << 20),
    0,
    "Not a parameter of upstream's. MiB of memory for the agent: from 80 % of it, or of its control group's limit, "
    "large policies wait, and those of the costliest namespaces. 0: only the control group's limit counts.",
)
