"""docs/distributions/: each page is its entry of manifests/distributions.yaml, with and without a registry."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

from build.distribution_pages import PAGES, read_distributions, render_all, render_page
from cni_calico import __version__
from tests.lab.layouts import LAYOUTS

ROOT = Path(__file__).parents[3]
ROWS = read_distributions()
by_title = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["title"])
KEYS = {"provider", "title", "page", "layout", "binDir", "confDir", "kubelet", "runtime", "range", "inKubeadmConfig"}
KEYS |= {"encapsulation", "disable", "commands", "flags", "notes", "unverified", "run"}
MORE = {"detection", "forwarding", "avoid", "cniTypes", "refused", "images", "policyOnly", "kubeconfig", "ships"}
# options that say what is made and where, and nothing that matters to a network
NAMES = {"--name", "--resource-group", "--nodes", "--config", "--namespace", "--set", "--now"}


def test_the_pages_are_up_to_date() -> None:
    assert {path.name: path.read_text() for path in PAGES.iterdir()} == render_all()


def test_every_page_waits_as_long_as_a_new_cluster_may_take() -> None:
    """The default of 60 s is too short where images are pulled and nodes are slow."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("manifests/**/NOTES.txt")]
    waits = [line for path in texts for line in re.findall(r"(?m)^.*cluster status --wait.*$", path.read_text())]
    assert len(waits) > 20
    assert [line for line in waits if "--wait --timeout 300" not in line] == []


@by_title
def test_an_entry_says_everything(row: dict[str, Any]) -> None:
    assert set(row) >= KEYS and set(row) <= KEYS | MORE
    assert all(isinstance(text, str) for key in ("notes", "unverified") for text in row[key])
    assert all(row[key].startswith("/") for key in ("binDir", "confDir", "kubelet", "runtime"))
    assert bool(row["commands"]) != bool(row.get("refused"))
    assert row["layout"] in ("kubeadm", "k3s", "microk8s", "talos", "k0s", "openshift")


@by_title
def test_what_is_not_ours_in_the_commands_says_where_it_is_documented(row: dict[str, Any]) -> None:
    commands = f"{row['commands']}\n{row.get('policyOnly', '')}"
    known = [entry["flag"] for entry in row["flags"]]
    for entry in row["flags"]:
        assert entry["flag"] in " ".join(f"{commands} {row.get('images')}".split())
        assert entry["source"].startswith("https://")
        assert entry["read"] is None or isinstance(entry["read"], datetime.date)
    theirs = set(re.findall(r"(?<!\S)--[\w-]+", commands)) - NAMES
    assert {word for word in theirs if not any(word in flag for flag in known)} == set()


@by_title
def test_the_table_of_the_page_is_the_entry(row: dict[str, Any]) -> None:
    page = (PAGES / f"{row['page']}.md").read_text()
    if refused := row.get("refused"):
        assert refused in page and "helm install" not in page
        return
    table = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", page, re.M))
    assert table["plugins"] == f"`{row['binDir']}`"
    assert table["configuration of the network"] == f"`{row['confDir']}`"
    assert table["the kubelet's directory"] == f"`{row['kubelet']}`"
    assert table["the runtime's socket"] == f"in `{row['runtime']}`"
    assert row["range"] in table["range of the pods"]
    assert table["to be switched off first"] == row["disable"]
    # a command as one line
    page = page.replace(" \\\n  ", " ")
    own = "".join(f" --set {part}.registry=REGISTRY/cni-calico" for part in ("node", "cni", "kubeControllers"))
    chart = f"cni-calico-chart-{__version__}.tgz --set image.digest={own if row['images'] == 'registry' else ''}"
    for command in row["commands"].strip().replace("CHART", chart).splitlines():
        assert command in page
    assert all(f"{what}." in page for what in row["unverified"])


@by_title
def test_where_images_go_into_a_registry_helm_is_told_of_it(row: dict[str, Any]) -> None:
    commands = re.findall(r"^helm .*cni-calico-chart-.*$", render_page(row).replace(" \\\n  ", " "), re.M)
    assert bool(commands) != bool(row.get("refused"))
    for part in ("node", "cni", "kubeControllers"):
        for command in commands:
            assert (f"--set {part}.registry=REGISTRY/cni-calico" in command) == (row["images"] == "registry")


@pytest.mark.parametrize(
    ("title", "path"),
    [
        ("kubeadm", "/etc/kubernetes/admin.conf"),
        ("Flatcar", "/etc/kubernetes/admin.conf"),
        ("OpenShift", "auth/kubeconfig"),
        ("kind", "~/.kube/config"),
    ],
)
def test_kubectl_is_told_of_what_the_cluster_was_made_with(title: str, path: str) -> None:
    [row] = [each for each in ROWS if each["title"] == title]
    assert re.findall(r"^export KUBECONFIG=(.*)$", render_page(row), re.M)[0] == path


@by_title
def test_the_layout_that_was_tested_is_its_own(row: dict[str, Any]) -> None:
    """Or that of another distribution with the same directories."""
    if not row.get("refused"):
        [layout] = [each for each in LAYOUTS if each.name == row["layout"]]
        tested = (layout.bin_dir, layout.conf_dir, layout.kubelet, layout.runtime)
        assert tested == (row["binDir"], row["confDir"], row["kubelet"], row["runtime"])


@by_title
def test_a_page_ends_with_where_it_was_run(row: dict[str, Any]) -> None:
    last = render_page(row).splitlines()[-1]
    if row.get("refused"):
        assert last == "Not supported."
        return
    assert last == f"Layout tested, not run on {row['title']}."
    ran = render_page({**row, "run": {"version": "v1.2", "date": "2030-01-02"}}).splitlines()[-1]
    assert ran == f"Run on {row['title']} v1.2: 2030-01-02."


@by_title
def test_once_it_is_published_nothing_is_said_of_a_directory(row: dict[str, Any]) -> None:
    """What build/release/published.py makes of the comments."""
    page = re.sub(r"<!-- unpublished -->\n.*?<!-- published\n(.*?)-->\n", r"\1", render_page(row), flags=re.S)
    assert (
        "release" not in page.replace("{releases}/v{version}/", "")
        and "localhost/" not in page
        and "REGISTRY" not in page
        and ".tgz" not in page
    )
    if not row.get("refused"):
        assert " oci://{registry}/charts/cni-calico --version {version} " in page
