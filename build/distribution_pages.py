"""Writes docs/distributions/ from manifests/distributions.yaml.

    python -m build.distribution_pages

Rule: a page says what its entry says and nothing else, so chart, tests and pages cannot differ. Its commands are those
for a directory with a release; what a published release says in their place stands beside them, as a comment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cni_calico import __version__

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "distributions"
Distribution = dict[str, Any]
_MADE = "Made from `manifests/distributions.yaml` (`python -m build.distribution_pages`); do not edit."
# by install-cni: ours, and those of the reference plugins that the image brings
_INSTALLED = ("calico", "calico-ipam", "calico.python", "calico-ipam.python")
_REFERENCE = {"bandwidth", "host-local", "loopback", "portmap", "tuning"}
# of a release in a directory, whose images get to the nodes without the digest that its chart names, and of a published
# one, where the words in braces are replaced
_CHARTS = (
    f"cni-calico-chart-{__version__}.tgz --set image.digest=",
    "oci://{registry}/charts/cni-calico --version {version}",
)
# where the images of a release in a directory went into a registry of one's own
_REGISTRY = [f"{part}.registry=REGISTRY/cni-calico" for part in ("node", "cni", "kubeControllers")]
_ARCHIVE = f"cni-calico-{__version__}-images-amd64.tar"
_CHECK = "calicoctl cluster status --wait --timeout 300\ncalicoctl cluster check"
_CALICOCTL = "kubectl-calico_{version}_linux_amd64.tar.gz"
_UNPACK = """\
mkdir -p calicoctl && tar -xzf {archive} -C calicoctl
ln -sf kubectl-calico calicoctl/calicoctl
export PATH=$PWD/calicoctl:$PATH"""
_FETCH = """\
curl -fsSLO {releases}/v{version}/ARCHIVE
curl -fsSLO {releases}/v{version}/SHA256SUMS
sha256sum -c --ignore-missing SHA256SUMS"""
_OTHERWISE = "\0"  # between the two forms of a text
_INDEX = """\
# Distributions of Kubernetes

{made}

Each has its own directories, its own range for pods, and a network of its own that has to be off before ours is
installed. `installation.kubernetesProvider` of [the chart](../helm.md) knows them. The pages begin with a release
([its signature](../publishing.md#what-users-do)) and need helm 3.

"Layout tested": on two nodes of containerd and kubelet with the directories, the socket, the plugins and the rights
that the distribution has, the chart was installed, pods reached one another and a port of their host, a node was
rebooted, the chart was upgraded and removed, and both directories were as before. The distribution's own programs did
not run.

"""


def read_distributions() -> list[Distribution]:
    """The entries, in their order."""
    found: list[Distribution] = yaml.safe_load((ROOT / "manifests" / "distributions.yaml").read_text())["distributions"]
    return found


def render_index(distributions: list[Distribution]) -> str:
    """The page that leads to all of them."""
    lines = ["| distribution | value | first switch off | run |", "|---|---|---|---|"]
    for each in distributions:
        value = f"`{each['provider']}`" if each["provider"] else "(default)"
        off = "" if each.get("refused") else _plain(each["disable"])
        lines.append(f"| [{each['title']}]({each['page']}.md) | {value} | {off or 'not possible'} | {_run(each)} |")
    return _INDEX.format(made=_MADE) + "\n".join(lines) + "\n"


def render_page(each: Distribution) -> str:
    """The page of one distribution."""
    if refused := each.get("refused"):
        parts = [f"Not supported: {refused}."]
    else:
        parts = [_layout(each), _tools(), *_steps(each), *_policy_only(each)]
        if each["notes"]:
            parts.append("## What is different\n\n" + _items(each["notes"]))
        parts += [_removal(each), _sources(each)]
    if each["unverified"]:
        parts.append("## Not verified\n\n" + _items([f"{what}." for what in each["unverified"]]))
    return "\n\n".join([f"# {each['title']}", _MADE, *parts, _sentence(_run(each))]) + "\n"


def _layout(each: Distribution) -> str:
    pods = f"`{each['range']}`" if each["range"] else "as you choose it"
    if each["inKubeadmConfig"]:
        pool = "found by the agent in the ConfigMap kubeadm-config"
    else:
        pool = f"`{each['range']}`" if each["range"] else "the agent's default, `192.168.0.0/16`"
    rows = {
        "plugins": f"`{each['binDir']}`",
        "configuration of the network": f"`{each['confDir']}`",
        "the kubelet's directory": f"`{each['kubelet']}`",
        "the runtime's socket": f"in `{each['runtime']}`",
        "range of the pods": pods,
        "our first pool, unless `ipPools` is given": pool,
        "between nodes, unless something else is given": "IPIP and BGP"
        if each["encapsulation"] == "IPIP"
        else "VXLAN, without BGP",
        "to be switched off first": _plain(each["disable"]),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())])


def _tools() -> str:
    here = _UNPACK.format(archive=_CALICOCTL.format(version=__version__))
    published = _FETCH.replace("ARCHIVE", _CALICOCTL) + "\n" + _UNPACK.replace("{archive}", _CALICOCTL)
    texts = [
        f"In the directory with the release, where helm is (with arm64: _arm64.tar.gz):\n\n{_shell(here)}",
        f"Where helm is (with arm64: _arm64.tar.gz):\n\n{_shell(published)}",
    ]
    return "## calicoctl\n\n" + _either(*texts)


def _steps(each: Distribution) -> list[str]:
    here = _CHARTS[0] + "".join(f" \\\n  --set {value}" for value in _own_registry(each))
    cluster = "## The cluster\n\n" + _shell(_both(each["commands"], "CHART", here, _CHARTS[1]))
    images = _images(each)
    # what takes images when it starts has them before
    steps = [images, cluster] if each["images"].startswith(("registry", "install ")) else [cluster, images]
    if "CHART" in each["commands"]:
        return [*steps, "## Afterwards\n\n" + _shell(f"{_kubeconfig(each)}\n{_CHECK}")]
    return [*steps, "## The network\n\n" + _shell(_helm(each, f"{_kubeconfig(each)}\n", f"\n{_CHECK}"))]


def _images(each: Distribution) -> str:
    if each["images"] == "registry":
        where = "into a registry that the nodes reach, REGISTRY"
        text = (
            f"skopeo copy oci-archive:{_ARCHIVE}:localhost/cni-calico/node:v{__version__} \\\n"
            f"  docker://REGISTRY/cni-calico/node:v{__version__}"
        )
    else:
        text = each["images"].replace("ARCHIVE", _ARCHIVE)
        where = (
            "for the cluster" if text.startswith(("kind ", "minikube ")) else "on every node (with arm64: -arm64.tar)"
        )
    here = f"In the directory with the release, {where}:\n\n{_shell(text)}"
    return "## The images\n\n" + _either(here, "The nodes pull them from `{registry}`, for amd64 and arm64.")


def _own_registry(each: Distribution) -> list[str]:
    return _REGISTRY if each["images"] == "registry" else []


def _kubeconfig(each: Distribution) -> str:
    return f"export KUBECONFIG={each.get('kubeconfig', '~/.kube/config')}"


def _helm(each: Distribution, before: str, after: str, *more: str) -> str:
    """Helm's command with what stands before and after it, for a release in a directory and for a published one."""
    values = [f"installation.kubernetesProvider={each['provider']}"] if each["provider"] else []

    def command(chart: str, *values: str) -> str:
        words = " \\\n  ".join(f"--set {value}" for value in values)
        return (
            f"{before}helm install calico {chart} --namespace kube-system"
            + (f" \\\n  {words}" if words else "")
            + after
        )

    here = command(_CHARTS[0], *values, *_own_registry(each), *more)
    return here + _OTHERWISE + command(_CHARTS[1], *values, *more)


def _policy_only(each: Distribution) -> list[str]:
    if "policyOnly" not in each:
        return []
    [kind] = each["cniTypes"]
    text = _helm(each, f"{each['policyOnly'].strip()}\n{_kubeconfig(each)}\n", "", f"installation.cni.type={kind}")
    said = f"The pods' network stays {kind}; nothing is installed for containers, and the agent enforces policies."
    return [f"## Policies alone\n\n{said} In the place of the cluster and the network above:\n\n" + _shell(text)]


def _removal(each: Distribution) -> str:
    said = "[As elsewhere](../kubernetes.md#remove-it), and on every node:"
    text = f"## Remove it\n\n{said}\n\n{_shell(render_removal(each))}"
    if "ships" in each:
        return text
    return f"{text}\n\nThe reference plugins stay (`loopback`, `portmap`, ...): others may use them."


def render_removal(each: Distribution) -> str:
    """The commands that leave a node's two directories as they were."""
    lines = [
        f"cd {each['confDir']} && rm -rf 10-calico.conflist calico-kubeconfig calico-tls",
        f"cd {each['binDir']} && rm -rf {' '.join(_INSTALLED)} .calico-*",
    ]
    if "ships" in each:
        lines.append(f"rm -f {' '.join(sorted(_REFERENCE - set(each['ships'])))}")
    return "\n".join(lines)


def _sources(each: Distribution) -> str:
    found = sorted({(entry["flag"], entry["source"], entry["read"]) for entry in each["flags"]}, key=str)
    items = [f"`{flag}`: <{url}>, " + (f"read on {day}" if day else "not looked up again") for flag, url, day in found]
    return "## Where that is documented\n\n" + _items(items)


def _run(each: Distribution) -> str:
    if each.get("refused"):
        return "not supported"
    if each["run"]:
        return f"run on {each['title']} {each['run']['version']}: {each['run']['date']}"
    return f"layout tested, not run on {each['title']}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _both(text: str, word: str, here: str, published: str) -> str:
    if word not in text:
        return text
    return text.strip().replace(word, here) + _OTHERWISE + text.strip().replace(word, published)


def _either(here: str, published: str) -> str:
    """What the repository says, and as a comment what a published release says in its place."""
    return f"<!-- unpublished -->\n{here}\n<!-- published\n{published}\n-->"


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def _items(texts: list[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _shell(text: str) -> str:
    blocks = [f"```sh\n{each.strip()}\n```" for each in text.split(_OTHERWISE)]
    return blocks[0] if len(blocks) == 1 else _either(*blocks)


def render_all() -> dict[str, str]:
    """File name below docs/distributions -> content."""
    found = read_distributions()
    return {"index.md": render_index(found), **{f"{each['page']}.md": render_page(each) for each in found}}


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    for name, text in render_all().items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
