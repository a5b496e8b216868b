"""PURE: the parameter Flows: what is recorded of connections, with the rule that decided.

Rule: it is off unless somebody asks for it, and what is off costs no packet anything.
"""

from __future__ import annotations

from cni_calico.daemon.settings_table import choice

DISABLED, DENIED = "Disabled", "Denied"
FLOWS = (
    choice("Enabled", DENIED, DISABLED),
    DISABLED,
    "Not a parameter of upstream's. Record every new connection, or only denied ones, with the rule that decided.",
)
