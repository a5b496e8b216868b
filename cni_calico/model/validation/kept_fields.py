"""PURE: fields of other kinds than FelixConfiguration that are stored and shown, and that nothing here acts on.

Rule: every field of upstream's API has an effect, is refused by name, or is a row here; docs/compatibility.md is
printed from it. FelixConfiguration's have a table of their own (nodeagent.context.unused).
"""

from __future__ import annotations

KEPT = (
    (
        "GlobalNetworkSet, NetworkSet",
        "allowedEgressDomains",
        "names of hosts, which upstream's open version does not use either: only `nets` count",
    ),
    ("KubeControllersConfiguration", "debugProfilePort", "for upstream's program, which is written in Go"),
    ("KubeControllersConfiguration", "policyMigration", "policies are not moved to other names"),
)
