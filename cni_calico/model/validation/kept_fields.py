"""PURE: fields of other kinds than FelixConfiguration that are stored and shown, and that nothing here acts on.

Rule: every field of upstream's API has an effect, is refused by name, or is a row here; docs/compatibility.md is
printed from it. FelixConfiguration's have a table of their own (nodeagent.context.unused).
"""

from __future__ import annotations

KEPT = (
    (
        "BGPConfiguration",
        "localWorkloadPeeringIPV4 localWorkloadPeeringIPV6",
        "for BGP with pods of the same node; the log names them",
    ),
    ("BGPPeer", "localWorkloadSelector", "the peer is left out, and the log and the status name it"),
    (
        "GlobalNetworkSet, NetworkSet",
        "allowedEgressDomains",
        "names of hosts, which upstream's open version does not use either: only `nets` count",
    ),
    ("IPAMConfiguration", "kubeVirtVMAddressPersistence", "for addresses of KubeVirt's virtual machines; shown"),
    ("KubeControllersConfiguration", "debugProfilePort", "for upstream's program, which is written in Go"),
    ("KubeControllersConfiguration", "policyMigration", "policies are not moved to other names"),
)
