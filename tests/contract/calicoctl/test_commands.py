"""Every command line that the help lists, over every datastore: each option of each subcommand, and what it exits with.

The command lines are made from the parser, so an option or a command that is added has to be given a value here.
"""

from __future__ import annotations

import json
import subprocess
from argparse import SUPPRESS, _HelpAction

import pytest

from cni_calico.ctl.command_line.arguments import build_parser, leaves
from cni_calico.ctl.main import run
from tests.contract.calicoctl.files import config_of

ON_THE_HOST = (
    "node status",
    "node diags",
    "node checksystem",
    "node run",
    "node boot-table",
    "node init",
    "node uninstall",
    "cluster rehearse",
)
EMBEDDED = ("datastore check", "datastore rebuild", "datastore salvage")  # about a file, of one datastore only
FOREVER = {("version", "--poll"), ("get", "--watch")}  # run as programs elsewhere
HEAD = {"apiVersion": "projectcalico.org/v3"}
SET = HEAD | {"kind": "NetworkSet", "metadata": {"name": "s", "namespace": "space"}, "spec": {"nets": ["10.0.0.0/8"]}}
POLICY = HEAD | {
    "kind": "NetworkPolicy",
    "metadata": {"name": "p", "namespace": "space"},
    "spec": {"selector": "has(nobody)", "types": ["Ingress"]},
}
EXPECTED = {
    "apiVersion": "cni-calico.dev/v1",
    "kind": "PolicyTest",
    "expectations": [{"from": "10.1.2.3", "to": "10.1.2.4", "port": 80, "expect": "allowed"}],
}
INSTALLATION = {
    "apiVersion": "operator.tigera.io/v1",
    "kind": "Installation",
    "metadata": {"name": "default"},
    "spec": {},
}
POOL = HEAD | {"kind": "IPPool", "metadata": {"name": "p"}, "spec": {"cidr": "10.9.0.0/24"}}

# what follows each command so that it has something to do
BASE = {
    "get": "get networkset s -n space",
    "create": "create -f {new}",
    "replace": "replace -f {set}",
    "apply": "apply -f {set}",
    "validate": "validate -f {set}",
    "diff": "diff -f {set}",
    "delete": "delete networkset s -n space",
    "patch": "patch networkset s -n space -p {{}}",
    "label": "label networkset s -n space a=b",
    "ipam show": "ipam show",
    "ipam check": "ipam check",
    "ipam release": "ipam release --ip=10.9.0.1",
    "ipam configure": "ipam configure --strict-affinity=false",
    "ipam split": "ipam split 2 --name=p",
    "policy explain": "policy explain --from 10.1.2.3 --to 10.1.2.4 --port 80",
    "policy show": "policy show --all",
    "policy diff": "policy diff --with {policies}",
    "policy recommend": "policy recommend --namespace space --flows {flows}",
    "policy rights": "policy rights somebody",
    "encryption status": "encryption status",
    "encryption rotate": "encryption rotate --all",
    "encryption strict": "encryption strict off",
    "installation convert": "installation convert -f {installation}",
    "policy replay": "policy replay --with {policies} --flows {flows}",
    "policy test": "policy test {expectations}",
    "migrate flannel": "migrate flannel",
    "datastore check": "datastore check",
    "datastore rebuild": "datastore rebuild",
    "datastore salvage": "datastore salvage -o {unused}",
    "datastore etcd-roles": "datastore etcd-roles",
    "datastore migrate-policy-names": "datastore migrate-policy-names",
    "datastore migrate lock": "datastore migrate lock",
    "datastore migrate unlock": "datastore migrate unlock",
    "datastore migrate export": "datastore migrate export",
    "datastore migrate import": "datastore migrate import -f {export}",
    "node status": "node status",
    "node diags": "node diags -o {unused}",
    "node boot-table": "node boot-table show",
    "node init": "node init --datastore etcd --dry-run",
    "node uninstall": "node uninstall --dry-run",
    "node checksystem": "node checksystem",
    "node run": "node run",
    "cluster status": "cluster status --timeout=3",
    "cluster check": "cluster check --host --network {unused}",
    "cluster rehearse": "cluster rehearse --with {directory}",
    "cluster diags": "cluster diags -o {unused}",
    "show": "show",
    "flows": "flows",
    "completion": "completion bash",
    "version": "version",
}
PATHS = ["custom-columns=A:.metadata.name", "jsonpath={{.metadata.name}}", "jsonpath-as-json={{.spec}}"]
SAID = ["table", "json", "yaml", "jsonpath={{$}}", "jsonpath-as-json={{$}}"]
SAYING = (
    *("ipam show", "policy explain", "policy show", "node status", "cluster status", "cluster check", "version"),
    *("show", "node checksystem", "datastore check", "policy rights", "encryption status", "cluster rehearse"),
)
VALUES = {
    "--config": ["{config}"],
    "--kubeconfig": ["{kubeconfig}"],
    "--context": ["test"],
    "--timeout": ["30"],
    "--log-level": ["debug", "panic"],
    "--namespace": ["space"],
    "--filename": ["{set}", "{directory}"],
    "--output": ["ps", "wide", "yaml", "json", "name", "custom-columns=NAME,NETS", "go-template={{{{.}}}}", *PATHS],
    "--dry-run": ["server", "client", "none"],
    "--patch": ['{{"spec":{{}}}}', "spec: {{}}"],
    "--type": ["strategic", "merge", "json"],
    "--ip": ["10.9.0.1"],
    "--datastore": ["local", "etcd"],
    "--endpoints": ["http://192.0.2.7:2379"],
    **{option: ["/no/file"] for option in ("--ca", "--cert", "--key")},
    "--as": ["64512"],
    "--peer": ["192.0.2.1@64500"],
    "--from-report": ["{report}"],
    "--strict-affinity": ["true", "false"],
    "--max-blocks-per-host": ["5"],
    "--kubevirt-ip-persistence": ["Enabled", "Disabled"],
    "--name": ["p"],
    "--cidr": ["10.9.0.0/24"],
    "--format": ["native", "upstream"],
    "--log-dir": ["{directory}"],
    "--kernel-config": ["{set}"],
    "--since": ["1h"],
    "--max-logs": ["1"],
    "--max-parallelism": ["2"],
    "--focus-nodes": ["n"],
    "--last": ["5"],
    "--first": ["5"],
    "--group": ["developers"],
    "--from-label": ["app"],
    "--to-label": ["app=web"],
    "--label": ["app=web"],
    "--service": ["10.96.0.1"],
    "--until": ["2026-01-02T03:04:05Z"],
    "--pod": ["space/web"],
    "--verdict": ["denied", "FORWARDED", "AUDIT"],
    "--staged": ["changed"],
    "--policy": ["p"],
    "--tier": ["default"],
    "--with": ["{set}"],
    "--from": ["10.1.2.3"],
    "--to": ["10.1.2.4"],
    "--protocol": ["tcp", "17"],
    "--port": ["80"],
    "--source-port": ["1024"],
    "--node": ["n"],
    "--nodes": ["a,b"],
    "--image": ["x"],
    "--html": ["{unused}"],
    "--web": ["18443"],
    "--environment": ["{set}"],
    "--network": ["{directory}"],
    "--plugins": ["{directory}"],
    **{option: ["x"] for option in ("--plugin", "--agent", "--controllers", "--calicoctl", "--passwords")},
}
OWN_VALUES = {
    **{
        (name, "--output"): ["{unused}"]
        for name in ("ipam check", "datastore migrate export", "datastore salvage", "node diags")
    },
    ("cluster diags", "--output"): ["{unused}"],
    ("datastore etcd-roles", "--output"): ["sh", "json", "yaml"],
    **{(name, "--output"): SAID for name in SAYING},
    ("flows", "--output"): ["wide", "json", "jsonl"],
    ("ipam check", "--format"): SAID,
    ("create", "--filename"): ["{new}"],
    **{(f"policy {name}", "--with"): ["{policy_directory}"] for name in ("diff", "replay", "test")},
    **{(f"policy {name}", "--output"): ["json", "table"] for name in ("diff", "recommend", "replay", "test")},
    **{(f"policy {name}", "--dir"): ["{policy_directory}"] for name in ("diff", "recommend", "replay")},
    **{(f"policy {name}", "--endpoints"): ["{workloads}"] for name in ("diff", "recommend", "replay", "test")},
    **{(f"policy {name}", "--flows"): ["{flows}"] for name in ("diff", "recommend", "replay")},
    **{(name, "--expectations"): ["{unused}"] for name in ("flows", "policy recommend")},
    ("policy recommend", "--kind"): ["NetworkPolicy", "StagedNetworkPolicy"],
    ("policy replay", "--without"): ["NetworkPolicy/space/p"],
    ("datastore migrate import", "--filename"): ["{export}"],
    ("datastore migrate import", "--dry-run"): ["server"],
    ("installation convert", "--filename"): ["{installation}"],
}
PREPARED = {
    "create": ["delete networkset new -n space --skip-not-exists"],
    "delete": ["apply -f {set}"],
    "label": ["apply -f {set}"],
    "ipam split": [
        "delete ippool p split-p-0 split-p-1 --skip-not-exists --force",
        "apply -f {pool}",
        "datastore migrate lock",
    ],
    "datastore migrate export": ["datastore migrate lock"],
}
# command lines that end with 1, and why
FAILING = {
    ("ipam release", "--ip"): "the address is not assigned",
    ("ipam release", "--force"): "the address is not assigned",
    ("ipam release", "--from-report"): "--ip comes first",
    ("ipam split", "--cidr"): "--name is given too",
    ("label", "--remove"): "a value is given",
    ("get", "--all-namespaces"): "a name is given",
}
# command lines that end with 2, and why
REFUSED = {
    ("policy diff", "--dir"): "give them with --endpoints",
    ("policy diff", "--endpoints"): "--dir is missing",
    ("policy diff", "--since"): "there is no recorder",
    **{("policy diff", option): "--since is missing" for option in ("--host", "--node")},
    **{("policy replay", option): "not beside --flows" for option in ("--host", "--node", "--since")},
    ("policy replay", "--dir"): "give them with --endpoints",
    ("policy replay", "--endpoints"): "--dir is missing",
    ("policy replay", "--without"): "there is no such policy",
    ("policy test", "--alone"): "--with is missing",
    ("policy test", "--endpoints"): "--alone is missing",
}
# which say by 1 that something differs
WITH_TROUBLE = {"cluster rehearse", "diff", "policy diff", "policy recommend", "policy replay", "policy test"}
IN_TROUBLE = {"policy recommend"}  # there is no flow to learn from
ALWAYS_FAILING = {
    "encryption rotate",  # there is no key
    "migrate flannel",  # there is none
    "flows",
    "node init",
    "cluster check",
    "cluster status",
    "ipam release",
    "node run",
    "node status",
    "policy test",
}


LEAVES = dict(leaves(build_parser()))


def options(parser):
    return [action for action in parser._actions if action.option_strings and not isinstance(action, _HelpAction)]


def lines_of(name):
    """(option, argv as templates) for each option and each of its values, by every spelling."""
    yield "", BASE[name].split()
    for action in options(LEAVES[name]):
        long = next(text for text in action.option_strings if text.startswith("--"))
        if (name, long) in FOREVER:
            continue
        if action.nargs == 0:
            lines = [[text] for text in action.option_strings]
        else:
            values = OWN_VALUES.get((name, long)) or (["x"] if action.help == SUPPRESS else VALUES[long])
            lines = [[text, value] for text in action.option_strings for value in values]
        for line in lines:
            yield long, [*BASE[name].split(), *line]


def test_the_table_has_every_command():
    assert BASE.keys() == LEAVES.keys()


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        run([*name.split(), "--help"], {})
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: calicoctl {name}")


@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
@pytest.mark.parametrize("name", sorted(set(LEAVES) - {*ON_THE_HOST, *EMBEDDED}))
@pytest.mark.slow_on("cluster diags", but=("kubernetes",))  # which collects all that the others do
@pytest.mark.slow_on("etcd", but=("get", "apply", "ipam check", "ipam show"))
def test_command_lines(name, space, tmp_path, capsys, monkeypatch):
    files = write_files(space, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["-c", str(files["config"]), "apply", "-f", str(files["set"])], {}) == 0
    for number, (option, line) in enumerate(lines_of(name)):
        prepare(files, name)
        argv = [word.format(**files, unused=tmp_path / f"out-{number}") for word in line]
        capsys.readouterr()
        status = run(["-c", str(files["config"]), *argv], {"CALICO_RUN_DIR": str(tmp_path)})
        wanted = expected(name, option, argv, space)
        assert status == wanted, (argv, capsys.readouterr())


def expected(name, option, argv, space):
    if option == "--kubeconfig":
        unreachable = not space.address.startswith("kubernetes") and name not in (
            "validate",
            "completion",
            "datastore etcd-roles",
            "installation convert",
        )
        return (2 if name in WITH_TROUBLE else 1) if unreachable else expected(name, "", argv[:-2], space)
    if (name, option) in REFUSED or name in IN_TROUBLE:
        return 2
    if name == "policy rights" and not space.address.startswith("kubernetes"):
        return 1  # rights are Kubernetes'
    if name in ALWAYS_FAILING or (name, option) in FAILING:
        return 1
    return 0


@pytest.mark.parametrize("name", EMBEDDED)
def test_command_lines_about_the_embedded_datastore(name, tmp_path, capsys):
    """Of a store that is in order: it can be checked and salvaged, and is not rebuilt."""
    (tmp_path / "config").write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n  datastoreType: local\n"
        f"  datastorePath: {tmp_path / 'store.db'}\n"
    )
    (tmp_path / "set").write_text(json.dumps(POOL))
    files = {"config": tmp_path / "config", "kubeconfig": "none", "set": tmp_path / "set", "directory": tmp_path}
    assert run(["-c", str(files["config"]), "apply", "-f", str(files["set"])], {}) == 0
    for number, (_, line) in enumerate(lines_of(name)):
        argv = ["-c", str(files["config"])] if "-c" not in line and "--config" not in line else []
        argv += [word.format(**files, unused=tmp_path / f"out-{number}") for word in line]
        capsys.readouterr()
        status = run(argv, {"CALICO_RUN_DIR": str(tmp_path)})
        said = capsys.readouterr()
        wanted = 1 if name == "datastore rebuild" and "--yes" not in line else 0  # without it nothing is done
        assert status == wanted and "Traceback" not in said.err, (argv, said)


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_command_lines_about_the_host(name, tmp_path, capsys, monkeypatch):
    (tmp_path / "set.json").write_text("CONFIG_VETH=y\nCONFIG_NF_TABLES=y\nCONFIG_NF_CONNTRACK=y\n")
    files = {"config": tmp_path / "none", "kubeconfig": "none", "set": tmp_path / "set.json", "directory": tmp_path}
    from cni_calico.ctl.node import diags

    monkeypatch.setattr(diags, "_COMMANDS", {"system/date": "date"})  # the others are the host's own
    for number, (_, line) in enumerate(lines_of(name)):
        argv = [word.format(**files, unused=tmp_path / f"out-{number}") for word in line]
        capsys.readouterr()
        status = run(argv, {"CALICO_RUN_DIR": str(tmp_path)})
        out, err = capsys.readouterr()
        lacking = name == "node checksystem" and status == 1 and "FAIL\n" in out  # this host may lack something
        wanted = 2 if name in WITH_TROUBLE else 1 if name in ALWAYS_FAILING or lacking else 0
        assert status == wanted, (argv, out, err)
        assert (
            out or name in WITH_TROUBLE or (name == "node init" and "cannot set this host up" in err)
        )  # nothing is installed here


@pytest.mark.slow
@pytest.mark.bundle
@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
@pytest.mark.parametrize("name", sorted(set(LEAVES) - {*ON_THE_HOST, *EMBEDDED}))
def test_command_lines_of_the_frozen_executable(name, bundle, space, tmp_path):
    """A sample: each command on every datastore, and each option, by its long spelling and with its first value, on one
    of them. What goes before runs in this process.
    """
    files = write_files(space, tmp_path)
    assert run(["-c", str(files["config"]), "apply", "-f", str(files["set"])], {}) == 0
    here, options_seen = ("etcd", "kubernetes", "local").index(space.address.partition(":")[0]), []
    for number, (option, line) in enumerate(lines_of(name)):
        if option in options_seen or (option and option not in line):
            continue
        options_seen.append(option)
        if option and len(options_seen) % 3 != here:
            continue
        prepare(files, name)
        argv = [word.format(**files, unused=tmp_path / f"out-{number}") for word in line]
        status, out, err = execute(bundle, tmp_path, "-c", str(files["config"]), *argv)
        assert status == expected(name, option, argv, space), (argv, out, err)
        assert "Traceback" not in err and "rror" not in ("" if status else err), (argv, err)


@pytest.mark.slow
@pytest.mark.bundle
@pytest.mark.parametrize("name", sorted(LEAVES))
def test_help_of_the_frozen_executable(name, bundle, tmp_path):
    status, out, _ = execute(bundle, tmp_path, *name.split(), "--help")
    assert status == 0 and out.startswith(f"usage: calicoctl {name}") and "\nexamples:\n" in out


def execute(bundle, directory, *argv):
    """(exit status, stdout, stderr) of calicoctl as it is built."""
    environ = {"CALICO_RUN_DIR": str(directory), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        [bundle / "calicoctl", *argv], cwd=directory, env=environ, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def write_files(space, tmp_path):
    """Paths of the files that command lines name."""
    texts = {
        "config": "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"
        + config_of(space.address),
        "set": json.dumps(SET),
        "new": json.dumps(SET | {"metadata": {"name": "new", "namespace": "space"}}),
        "pool": json.dumps(POOL),
        "export": json.dumps({"format": "cni-calico/datastore-export/v1", "records": {}}),
        "report": json.dumps({"allocations": {}}),
        "policies": json.dumps(POLICY),
        "workloads": json.dumps({"apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpointList", "items": []}),
        "flows": "",
        "installation": json.dumps(INSTALLATION),
        "expectations": json.dumps(EXPECTED),
        "kubeconfig": kubeconfig_of(space.address),
    }
    files = {}
    for name, text in texts.items():
        files[name] = tmp_path / f"{name}.file"
        files[name].write_text(text)
    files["directory"] = tmp_path / "directory"
    files["directory"].mkdir()
    (files["directory"] / "set.json").write_text(texts["set"])
    files["policy_directory"] = tmp_path / "policies"
    files["policy_directory"].mkdir()
    (files["policy_directory"] / "policy.json").write_text(json.dumps(POLICY | {"metadata": {"name": "other"}}))
    return files


def kubeconfig_of(address):
    url, ca, _ = (
        address.partition(":")[2].split(" ") if address.startswith("kubernetes") else ("https://127.0.0.1:1", "", "")
    )
    cluster = {"server": url, **({"certificate-authority": ca} if ca else {})}
    context = {"cluster": "c", "user": "u"}
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": context}, {"name": "other", "context": context}],
            "current-context": "other",
        }
    )


def prepare(files, name):
    """What a command line starts from, whatever the one before has done."""
    for words in PREPARED.get(name, ()):
        argv = ["-c", str(files["config"]), *(word.format(**files) for word in words.split())]
        assert run(argv, {}) == 0, argv
