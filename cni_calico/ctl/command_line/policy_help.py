"""PURE: what ``calicoctl policy`` says about its commands. Rule: as for the texts of all commands (help_texts.py)."""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.command_line.node_help import Help

POLICY: Mapping[str, Help] = {
    "policy rights": Help(
        "what a user of Kubernetes may do with the policies of each tier",
        "Asks the API server, as Calico's API server and webhook do, and says if nobody checks the answers here.",
        (
            ("policy rights alice", "for each tier and kind of policy"),
            ("policy rights alice --group dev", "as a member of a group"),
            ("policy rights system:serviceaccount:ci:deploy -o json", "of a service account, for a script"),
        ),
    ),
    "policy explain": Help(
        "whether a connection is allowed, and why",
        "Names the tier, policy and rule that decide, at both ends. The answer is computed from what is stored; no "
        "agent is asked.",
        (
            ("policy explain --from shop/web --to shop/db --port 5432", "between two pods"),
            ("policy explain --from web --to db --port 80 -o 'jsonpath={.allowed}'", "true or false, for a script"),
            ("policy explain -n shop --from web --to 192.0.2.1 --protocol udp --port 53", "to an address outside"),
            ("policy explain --from shop/web --to shop/db --port 80 --with new.yaml", "as if the file were applied"),
            ("policy explain --from 10.0.0.1 --to shop/db --port 80 --source-port 1024", "from a certain source port"),
            ("policy explain --from 10.0.0.1 --to hostendpoint:worker-1 --port 10250", "to a host"),
            ("policy explain --from 10.0.0.1 --to 192.0.2.11:8080", "to a published port of this host"),
        ),
    ),
    "policy show": Help(
        "the policies of a workload or a host endpoint, in their order",
        "",
        (
            ("policy show web -n shop", "of one pod"),
            ("policy show --all --node a", "of every workload of a node"),
            ("policy show hostendpoint:worker-1", "of one host endpoint"),
            ("policy show web -o json", "for a script"),
            ("policy show shop/web --with new.yaml", "as if the file were applied"),
        ),
    ),
    "policy diff": Help(
        "whose connections a change of policy allows or denies, before it is applied",
        "Compares every pair of workloads and addresses, with every port and protocol, and names policies that apply "
        "to nobody and rules that can never match. Without a datastore with --dir and --endpoints, for Git. The exit "
        "status is 0 if no verdict changes, 1 if one does, 2 if something is wrong or could not be judged.",
        (
            ("policy diff --with new.yaml", "what applying a file would change"),
            ("policy diff --with policies/ --prune", "and deleting every policy that is not in the directory"),
            ("policy diff --dir old/ --with new/ --endpoints pods.yaml", "two directories, without a datastore"),
            ("policy diff --with new.yaml --since 24h", "with how often recorded flows have used each line"),
            ("policy diff --with new.yaml --since 24h --node worker-1", "of one node's flows"),
            ("policy diff --with new.yaml --since 24h --host", "of this host's flows, even if there is a cluster"),
            ("policy diff --with new.yaml --flows a.jsonl", "of flows that a node has written"),
            ("policy diff --with new.yaml --html review.html", "as a page for a reviewer"),
            ("policy diff --with new.yaml -n shop -o json", "for a script; a policy without a namespace is in shop"),
        ),
    ),
    "policy recommend": Help(
        "policies for a namespace, of what its recorded flows have used",
        "One policy for each workload, with a comment at each rule that says how often it was used. The policies are "
        "checked before they are written: what was recorded as allowed must stay so, and what they would open besides "
        "is said. The exit status is 0 if they do, 1 if something would be denied, 2 if something is wrong.",
        (
            ("policy recommend -n shop --since 24h > shop.yaml", "of a day's flows"),
            ("policy recommend -n shop --node worker-1 --node worker-2", "of two nodes' flows"),
            ("policy recommend -n shop --host", "of this host's flows, even if there is a cluster"),
            ("policy recommend -n shop --expectations expected.yaml", "and a file for 'policy test'"),
            ("policy recommend -n shop --kind StagedNetworkPolicy", "to be watched before they are enforced"),
            ("policy recommend -n shop --include-denied --flows a.jsonl", "also of what was denied"),
            (
                "policy recommend -n shop --dir policies/ --endpoints pods.yaml --flows a.jsonl -o json",
                "without a datastore, with everything that is known",
            ),
        ),
    ),
    "policy replay": Help(
        "what a change of policy would have done to recorded flows",
        "Judges each recorded connection by the policies as they are and as they would be. What was recorded otherwise "
        "than it is decided now, and what cannot be judged, is told apart. The exit status is 0 if nothing that was "
        "allowed would be denied, 1 if something would, 2 if something is wrong.",
        (
            ("policy replay --with new.yaml --since 24h", "on the flows of a day, of all nodes or this host"),
            ("policy replay --with new.yaml --node worker-1", "on one node's flows"),
            ("policy replay --with new.yaml --host", "on this host's flows, even if there is a cluster"),
            ("policy replay --with new.yaml --html review.html", "as a page for a reviewer"),
            ("policy replay --with policies/ --prune", "and without every policy that is not in the directory"),
            ("policy replay --with new.yaml --flows a.jsonl --flows b.jsonl", "on flows that nodes have written"),
            (
                "policy replay --without networkpolicy/shop/database --any -o json",
                "without a policy; also what is opened",
            ),
            (
                "policy replay --dir old/ --with new/ -n shop --endpoints pods.yaml --flows a.jsonl",
                "without a datastore",
            ),
        ),
    ),
    "policy test": Help(
        "whether policies allow and deny what files of expectations say",
        "Labels stand for every workload that has them, and with --alone for one that is made. The exit status is 0 if "
        "every expectation holds, 1 if one does not, 2 if something is wrong.",
        (
            ("policy test expected.yaml", "by what is stored"),
            ("policy test tests/ --with policies/ -n shop", "as if the policies were applied"),
            ("policy test tests/ --with policies/ --alone", "by the files alone, without a datastore"),
            ("policy test tests/ --with policies/ --alone --endpoints pods.yaml -o json", "with these workloads"),
        ),
    ),
}
