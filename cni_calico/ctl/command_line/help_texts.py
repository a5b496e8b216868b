"""PURE: what calicoctl's help and manual page say about each command: a summary, and command lines that work.

Rule: every command has an entry, and every option of a command occurs in one of its examples; a test holds both and
parses the examples.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.command_line.encryption_help import ENCRYPTION
from cni_calico.ctl.command_line.flow_help import FLOWS
from cni_calico.ctl.command_line.node_help import SETUP, Help
from cni_calico.ctl.command_line.policy_help import POLICY

PROGRAM = Help(
    "Manage Calico's resources and addresses.",
    "Works with the datastore that /etc/calico/calicoctl.cfg names, else with the one of the environment "
    "(DATASTORE_TYPE, ETCD_ENDPOINTS, KUBECONFIG, ...), else with this host's embedded one. "
    "The exit status is 0 when everything asked for was done, and 1 otherwise; diff has three.",
    (
        ("get nodes", "the nodes of the cluster"),
        ("apply -f pool.yaml", "create or change a pool"),
        ("ipam show", "how full the pools are"),
        ("policy explain --from web --to db --port 5432", "whether a connection is allowed, and why"),
        ("-c /etc/calico/other.cfg get ippools", "with another datastore"),
        ("--kubeconfig ~/.kube/config --context lab get nodes", "with a cluster of a kubeconfig"),
        ("get nodes --timeout 5", "give up after five seconds"),
        ("get nodes -l debug", "log each request to the datastore and its duration"),
        ("version --allow-version-mismatch", "accepted for scripts; a mismatch never stops this program"),
        ("-v", "the version"),
    ),
)

COMMANDS: Mapping[str, Help] = {
    "get": Help(
        "show resources",
        "A name that does not exist is an error; the resources that were found are shown nevertheless. A kind without "
        "any resource is no error; a line on standard error says that there is none.",
        (
            ("get ippools -o wide", "every pool, with more columns"),
            ("get node/a node/b -o yaml", "two nodes, completely"),
            ("get ippools,bgppeers", "two kinds"),
            ("get networkpolicy -n shop", "of one namespace"),
            ("get networkpolicy -A -o name", "of all namespaces, names only"),
            ("get ippool -o custom-columns=NAME,CIDR", "columns of your choice"),
            ("get nodes -o custom-columns=NAME:.metadata.name,AS:.spec.bgp.asNumber", "any fields as columns"),
            ("get ippools -o 'jsonpath={.items[*].spec.cidr}'", "any fields, as kubectl's"),
            ("get ippool default-ipv4-ippool -o yaml --export", "for another cluster"),
            ("get networkpolicy -A --watch", "and every change from now on"),
            ("get -f policies/ -R --skip-empty", "what is stored of the resources in these files"),
        ),
    ),
    "create": Help(
        "create resources",
        "A resource that exists already is an error. Each resource is processed; errors are listed at the end.",
        (
            ("create -f pool.yaml", "a pool from a file"),
            ("create -f manifests/ -R --skip-exists", "all files below a directory, leaving what exists"),
            ("create -f - -n shop --skip-empty", "from standard input, for one namespace"),
            ("create -f pool.yaml --dry-run=client", "check the file, without a datastore"),
            ("create -f new.yaml --allow-unknown-fields", "with fields that only a newer version knows"),
        ),
    ),
    "replace": Help(
        "replace resources",
        "Each resource must exist; fields that the file does not have are removed. The command stops at the first "
        "error.",
        (
            ("replace -f pool.yaml", "replace a pool by the one in the file"),
            ("replace -f policies/ -R -n shop --skip-empty", "all files below a directory"),
            ("replace -f pool.yaml --dry-run=server", "check whether it would succeed"),
            ("replace -f new.yaml --allow-unknown-fields", "with fields that only a newer version knows"),
        ),
    ),
    "apply": Help(
        "create resources, or replace those that exist",
        "A document with a resourceVersion only replaces exactly that version.",
        (
            ("apply -f pool.yaml", "create or change a pool"),
            ("apply -f policies/ -R -n shop --skip-empty", "all files below a directory"),
            ("apply -f pool.yaml --dry-run=server", "check whether it would succeed"),
            ("apply -f new.yaml --allow-unknown-fields", "with fields that only a newer version knows"),
        ),
    ),
    "validate": Help(
        "check resources in files, without a datastore",
        "All errors are reported at once, each with field and value.",
        (
            ("validate -f pool.yaml", "whether create would accept it"),
            ("validate -f policies/ -R -n shop --skip-empty", "all files below a directory"),
            ("validate -f new.yaml --allow-unknown-fields", "with fields that only a newer version knows"),
        ),
    ),
    "diff": Help(
        "what apply would change",
        "The exit status is 0 when nothing would change, 1 when something would, and 2 after an error.",
        (
            ("diff -f pool.yaml", "the changes, line by line"),
            ("diff -f policies/ -R -n shop --skip-empty", "all files below a directory"),
            ("diff -f new.yaml --allow-unknown-fields", "with fields that only a newer version knows"),
        ),
    ),
    "delete": Help(
        "delete resources",
        "A pool whose addresses are in use is not deleted without --force. Deleting a node releases its addresses.",
        (
            ("delete ippool old", "one pool"),
            ("delete networkpolicy/a,networkpolicy/b -n shop", "two policies of a namespace"),
            (
                "delete -f policies/ -R --skip-empty --skip-not-exists",
                "the resources that these files name, if they exist",
            ),
            ("delete ippool old --dry-run=server", "check whether it would succeed"),
            ("delete ippool old --force", "even while workloads have its addresses"),
        ),
    ),
    "patch": Help(
        "change parts of a resource",
        "The patch is JSON or YAML. Types strategic and merge are the same here; json is a list of operations.",
        (
            ('patch ippool default-ipv4-ippool -p \'{"spec":{"natOutgoing":true}}\'', "set one field"),
            ('patch np/web -n shop -t json -p \'[{"op":"remove","path":"/spec/order"}]\'', "a list of operations"),
            ("patch node/a --dry-run=server -p 'spec: {}'", "check whether it would succeed"),
            (
                "patch node/a --allow-unknown-fields -p 'spec: {newer: 1}'",
                "with a field that only a newer version knows",
            ),
        ),
    ),
    "label": Help(
        "set or remove a label of a resource",
        "",
        (
            ("label node a rack=r1", "set a label that is not there yet"),
            ("label networkset/web -n shop zone=b --overwrite", "change a label"),
            ("label node a rack --remove", "remove a label"),
            ("label node a rack=r1 --dry-run=server", "check whether it would succeed"),
            ("label node a rack=r1 --allow-unknown-fields", "keep fields that this version does not know"),
        ),
    ),
    "ipam": Help("inspect and repair addresses"),
    "ipam show": Help(
        "how full pools and blocks are, who has an address, the configuration",
        "",
        (
            ("ipam show", "how full the pools are"),
            ("ipam show --show-blocks -o json", "with their blocks, for programs"),
            ("ipam show --ip=10.244.1.7", "who has this address"),
            ("ipam show --show-borrowed", "addresses that a node took from another node's block"),
            ("ipam show --show-configuration", "the configuration of IPAM"),
        ),
    ),
    "ipam check": Help(
        "find inconsistencies; exits with 1 if there are any",
        "Nothing is changed.",
        (
            ("ipam check --show-problem-ips", "with every address that has a problem"),
            ("ipam check --show-all-ips", "with every address"),
            ("ipam check -o report.json", "write a report for 'ipam release --from-report'"),
            ("ipam check --format json", "print that report"),
        ),
    ),
    "ipam release": Help(
        "release addresses that nobody uses",
        "Given several reports, only addresses that are leaked in all of them are released.",
        (
            ("ipam release --ip=10.244.1.7", "one address"),
            ("ipam release --from-report=report.json", "what 'ipam check' found, while the datastore is locked"),
            ("ipam release --from-report=a.json --from-report=b.json --force", "without locking the datastore"),
        ),
    ),
    "ipam configure": Help(
        "change the configuration of IPAM",
        "",
        (
            ("ipam configure --strict-affinity=true", "nodes use addresses of their own blocks only"),
            ("ipam configure --strict-affinity=true --force", "even if addresses are borrowed now"),
            ("ipam configure --max-blocks-per-host=4", "at most four blocks a node"),
            ("ipam configure --kubevirt-ip-persistence=Disabled", "virtual machines of KubeVirt get new addresses"),
        ),
    ),
    "ipam split": Help(
        "split a pool into several (the datastore must be locked)",
        "Blocks and addresses in use stay as they are.",
        (
            ("ipam split 4 --name=default-ipv4-ippool", "into four, named split-default-ipv4-ippool-0 and so on"),
            ("ipam split 2 --cidr=10.244.0.0/16", "the pool with this CIDR"),
        ),
    ),
    "policy": Help("what policies do to connections"),
    **POLICY,
    **ENCRYPTION,
    "datastore": Help("move all data; check and repair the embedded datastore's file"),
    "migrate": Help("move a cluster from another network"),
    "migrate flannel": Help(
        "move a cluster from flannel to Calico, node by node",
        "Reads flannel's ConfigMap, its DaemonSet and the Nodes, and changes nothing.",
        (
            ("migrate flannel --check", "whether it is possible, and how far it is"),
            ("migrate flannel --plan", "what to apply and to do"),
        ),
    ),
    "datastore migrate": Help("move all data to another datastore"),
    "datastore migrate lock": Help(
        "stop ADD and DEL while data is moved", "", (("datastore migrate lock", "before an export"),)
    ),
    "datastore migrate unlock": Help(
        "let ADD and DEL continue", "", (("datastore migrate unlock", "after an import, in the new datastore"),)
    ),
    "datastore migrate export": Help(
        "print all data of a locked datastore",
        "",
        (
            ("datastore migrate export -o all.json", "into a file"),
            ("datastore migrate export --format=upstream", "as upstream's calicoctl writes it"),
        ),
    ),
    "datastore migrate import": Help(
        "write exported data into an empty datastore",
        "Reads this program's exports and upstream's. An import that was interrupted can be repeated.",
        (
            ("-c other.cfg datastore migrate import -f all.json", "into the datastore that other.cfg names"),
            ("datastore migrate import -f all.json --dry-run=server", "what Kubernetes would refuse"),
        ),
    ),
    "datastore migrate-policy-names": Help(
        "rename the policies that versions before 3.32 stored as default.NAME",
        "With etcd only: drops the prefix of the names of policies in tier default. The command can be repeated.",
        (("datastore migrate-policy-names", "after the last node has been upgraded"),),
    ),
    "datastore etcd-roles": Help(
        "print the roles that Calico's programs need on an etcd with authentication",
        "Opens no datastore. The default is a script of etcdctl commands, which can be read, changed, and run again.",
        (
            ("datastore etcd-roles > roles.sh", "run it with ETCDCTL_ENDPOINTS, ETCDCTL_USER ... of etcd's root user"),
            ("datastore etcd-roles --agent calico --plugin calico", "one user for both"),
            ("datastore etcd-roles --controllers control --calicoctl admin", "other users"),
            ("datastore etcd-roles --without-controllers", "the agents clean up for the cluster"),
            ("datastore etcd-roles --passwords /etc/etcd-users", "users with passwords instead of certificates"),
            ("datastore etcd-roles --kubernetes -o yaml", "the rights, for other tools"),
        ),
    ),
    "datastore check": Help(
        "whether the embedded datastore's file is intact",
        "",
        (("datastore check", "exits with 1 if it is not"), ("datastore check -o json", "for programs")),
    ),
    "datastore salvage": Help(
        "write what can be read of a damaged embedded datastore into a new one",
        "",
        (("datastore salvage -o /var/lib/calico/salvaged.db", "the damaged file stays as it is"),),
    ),
    "datastore rebuild": Help(
        "make a new embedded datastore for a lost one",
        "The addresses of running containers stay allocated. Without --yes it only shows what it would do.",
        (
            ("datastore rebuild -f pools.yaml", "what would be done"),
            ("datastore rebuild -f pools.yaml --node a --yes", "make it, for this node"),
        ),
    ),
    "installation": Help("move from an operator's Installation to the chart"),
    "installation convert": Help(
        "print an operator's Installation as values of the chart",
        "Every field is used, refused with what to do, or named as without effect. Opens no datastore.",
        (
            ("installation convert -f installation.yaml > values.yaml", "what 'kubectl get installation' has printed"),
            ("installation convert -f -", "from a pipe"),
        ),
    ),
    "node": Help("inspect this host"),
    "node status": Help(
        "state of calico-node and its BGP sessions",
        "Asks the agent and BIRD on this host, never the datastore. Needs root. The exit status is 1 when the node is "
        "not ready.",
        (
            ("node status", "ready or why not, tunnels, policy, BGP peers"),
            ("node status -o 'jsonpath={.bird.peers[*].address}'", "one part of it, for a script"),
        ),
    ),
    "node boot-table": Help(
        "open workloads' interfaces that are closed since this host started",
        "The boot table closes them until calico-node has decided what may pass; off is for a host whose calico-node "
        "does not start. Needs root.",
        (
            ("node boot-table off", "workloads are open, until calico-node enforces policies"),
            ("node boot-table show", "whether they are closed"),
        ),
    ),
    "node diags": Help(
        "one archive of logs, routes and configuration of this host",
        "Passwords, tokens and keys are hidden in it.",
        (("node diags --log-dir=/var/log/calico -o /tmp/diags.tar.gz", "into this file"),),
    ),
    "node checksystem": Help(
        "whether this host can be a node",
        "",
        (
            ("node checksystem", "the running kernel"),
            ("node checksystem -f /boot/config-6.1.0", "a kernel's configuration"),
            ("node checksystem -o json", "for programs"),
        ),
    ),
    **SETUP,
    **FLOWS,
    "node run": Help(
        "how to run calico-node on this host",
        "Starts nothing: prints the commands for systemd and podman, and exits with 1. Accepts upstream's options.",
        (("node run", "the commands that do it"),),
    ),
    "cluster": Help("inspect the whole cluster"),
    "cluster status": Help(
        "whether the cluster has problems: nodes, pools, addresses",
        "The exit status is 1 when it has any, and standard error says which.",
        (
            ("cluster status", "look once"),
            ("cluster status -o json", "for a script"),
            (
                "cluster status --wait --timeout 300",
                "after an installation: wait until there are no problems, at most five minutes",
            ),
        ),
    ),
    "cluster check": Help(
        "try the network: two pods, or on a host without Kubernetes two namespaces",
        "Tries addresses of both families, packets of full size, services, DNS and a policy, and removes what it made, "
        "also after Ctrl-C. The pods run the image of calico-node, which the nodes have already. The exit status is 1 "
        "when something does not work.",
        (
            ("cluster check", "between two nodes that are ready"),
            ("cluster check -o json", "all findings at the end, for a script"),
            ("cluster check --nodes a,b --timeout 300", "between these two"),
            ("cluster check --image registry.example/calico/node:v1", "where calico-node does not run in pods"),
            (
                "cluster check --host --network /etc/cni/net.d/10-calico.conflist --plugins /opt/cni/bin",
                "on this host, as root",
            ),
        ),
    ),
    "cluster rehearse": Help(
        "what another version would change on this host, before it is installed",
        "Runs calico-node -rehearse of that version, as root, with this node's records, and changes nothing: tables, "
        "routes, tunnels, settings, BIRD's configuration. Beside upstream's agent also the connections that would be "
        "denied, and the settings without effect. The exit status is 0 if nothing would change, 1 if something would, "
        "2 for trouble.",
        (
            ("cluster rehearse --with /tmp/new/bin", "with the executables of a new version"),
            ("cluster rehearse --with /tmp/image -o json", "with an unpacked image, for a script"),
            (
                "cluster rehearse --with /tmp/new --environment /etc/calico/calico-node.env",
                "where no agent runs yet",
            ),
        ),
    ),
    "cluster diags": Help(
        "one archive of the cluster's resources and logs",
        "Asks the API server itself and needs no kubectl. Secrets are hidden.",
        (
            ("cluster diags --since=1h -o /tmp/cluster.tar.gz", "logs of the last hour"),
            (
                "cluster diags --focus-nodes=a,b --max-logs=2 --max-parallelism=4",
                "two pods of a kind, those on a and b first",
            ),
            ("cluster diags --skip-temp-dir-cleanup", "as upstream's scripts call it"),
        ),
    ),
    "show": Help(
        "a picture of the cluster: pools, blocks, nodes, tunnels, BGP sessions",
        "Everything comes from the datastore. The page needs nothing but a browser and can be given to others.",
        (
            ("show", "on the terminal"),
            ("show --html cluster.html", "as a page"),
            ("show -o json", "for a script"),
        ),
    ),
    "completion": Help(
        "print the completion script for a shell",
        "Completes commands, options and kinds of resources.",
        (
            ("completion bash > /etc/bash_completion.d/calicoctl", "for everybody, with bash"),
            ("completion zsh > ~/.zfunc/_calicoctl", "for zsh, where ~/.zfunc is in fpath"),
            ("completion fish > ~/.config/fish/completions/calicoctl.fish", "for fish"),
        ),
    ),
    "version": Help(
        "versions of this program and the cluster's data",
        "",
        (
            ("version --client", "of this program only"),
            ("version -o yaml", "of both, for a script"),
            ("version --poll=10s", "ask again every ten seconds, and report changes"),
        ),
    ),
}
