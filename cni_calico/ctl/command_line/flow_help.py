"""PURE: what help says about flows; help_texts.py has the other commands.

Rule: as there.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.command_line.node_help import Help

FLOWS: Mapping[str, Help] = {
    "flows": Help(
        "connections of all nodes, or of this host, and the rule that decided about each",
        "As the kernel reported them to the recorder, not as they are computed: those that were denied, with "
        "FELIX_FLOWS=Enabled all. A filter that is given "
        "twice means either; different ones mean both. With an API server all nodes are asked, by a command in their "
        "agents' pods (pods/exec); else this host, as root. The exit status is 0 also if there is no flow, 1 if none "
        "can be read, 3 with --fail-if-denied.",
        (
            ("flows --last 50 --verdict denied", "what was denied last"),
            ("flows --since 8h --until 1h --verdict denied --aggregate", "what was denied last night, added up"),
            ("flows -f --pod shop/web -v", "everything of a pod, as it happens"),
            ("flows --to shop/db --port 5432 --aggregate -o json", "who talks to this database"),
            ("flows --from shop/web --to shop/db --not --verdict allowed", "why web does not reach db"),
            ("flows --protocol udp --port 53 -n shop --verdict denied --fail-if-denied", "is DNS blocked, for a test"),
            ("flows --kubeconfig ~/.kube/config --node worker-1 --node worker-2", "of two nodes of a cluster"),
            ("flows --host", "of this host, even if there is a cluster"),
            ("flows --staged changed --since 1h --aggregate", "what enforcing the staged policies would change"),
            ("flows --web --namespace shop", "as a page, until interrupted"),
            ("flows --html flows.html --since 8h", "as a page in a file"),
            ("flows --since 24h --aggregate --expectations expected.yaml", "and a file for 'policy test'"),
            ("flows --since 1h --first 1 --from-label app=web -o dict", "the first one of an hour, in full"),
            ("flows --label app=db --not --to-label app=db", "what a workload's pods begin"),
            ("flows --service shop/db -o jsonpath='{[*].source.name}'", "who asks a service"),
            ("flows --ip 192.0.2.7 --policy shop/to-partners --tier default", "by address and policy"),
        ),
    ),
}
