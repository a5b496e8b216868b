"""The kustomize bases against the manifests, and the overlay of docs/install.md, by kubectl's own kustomize."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.manifest_documents import MANIFESTS, Documents, documents

pytestmark = pytest.mark.kubernetes


def built(directory: Path) -> Documents:
    done = subprocess.run([LAB_CACHE / "bin" / "kubectl", "kustomize", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@pytest.mark.parametrize(("base", "manifest"), [(".", "calico.yaml"), ("etcd", "calico-etcd.yaml")])
def test_a_base_is_the_manifest(base: str, manifest: str) -> None:
    assert built(MANIFESTS / base) == documents((MANIFESTS / manifest).read_text())


def test_an_overlay_as_the_page_shows_it(tmp_path: Path) -> None:
    blocks = (ROOT / "docs" / "install.md").read_text().split("```yaml\n")[1:]
    [text] = [block.partition("```")[0] for block in blocks if "kind: Kustomization" in block]
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(text)
    (tmp_path / "manifests").mkdir()
    for name in ("kustomization.yaml", "calico.yaml"):
        (tmp_path / "manifests" / name).write_text((MANIFESTS / name).read_text())
    found, base = built(tmp_path / "overlay"), documents((MANIFESTS / "calico.yaml").read_text())
    assert found.keys() == base.keys()
    changed = {key for key in found if found[key] != base[key]}
    assert changed == {("DaemonSet", "calico-node"), ("Deployment", "calico-kube-controllers")}
    spec = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]
    assert {each["image"] for each in [*spec["initContainers"], *spec["containers"]]} == {
        "registry.example/cni-calico/node:v1"
    }
    [agent] = spec["containers"]
    assert {"name": "CALICO_IPV4POOL_CIDR", "value": "10.48.0.0/16"} in agent["env"]
    assert agent["resources"] == {"requests": {"cpu": "250m"}, "limits": {"memory": "512Mi"}}
