#!/usr/bin/env python3
"""Renders the manifests and the Helm chart: ``render.py [--check]``; --check: only report whether they match.

Rule: one source for both datastores and both API groups. A block between "# begin only: WHICH" and "# end only", or a
line ending in "# only: WHICH", is only for that datastore, or for the group projectcalico.org (native).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cni_calico import __version__
from manifests import cluster_policies
from manifests.admission import VERSIONS, mutating_policies, validating_policies
from manifests.charts import render_chart
from manifests.kinds import GROUP, KINDS, NATIVE_GROUP, definition, native_definition
from manifests.schemas import Schema

HERE = Path(__file__).resolve().parent

_BASE = """\
# A base of kustomize: {resource}, with Calico's data in {datastore}; docs/install.md shows an overlay.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - {resource}
"""
_ADMISSION_HEAD = """\
# Admission policies that complete policies of projectcalico.org/v3; made from manifests/admission.py by
# manifests/render.py. In the version of Kubernetes 1.36; docs/kubernetes.md says how an older one is given.
"""
_HEAD = "# Calico's custom resource definitions; made from manifests/kinds.py by manifests/render.py.\n"
_NATIVE_HEAD = _HEAD + "# Of projectcalico.org/v3. A cluster has these or those of crds.yaml, never both.\n"
_POLICIES_HEAD = """\
# Kubernetes' ClusterNetworkPolicy; made from manifests/cluster_policies.py by manifests/render.py. It may be there
# already, from another bundle: applied under this name, the API server refuses to change that one:
#   kubectl apply --server-side --field-manager=cni-calico -f clusternetworkpolicies.yaml
"""


class _Plain(yaml.SafeDumper):
    """Writes values that occur twice in full."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render_documents(head: str, documents: Iterable[Schema]) -> str:
    texts = [yaml.dump(each, Dumper=_Plain, sort_keys=False, width=120) for each in documents]
    return head + "".join(f"---\n{text}" for text in texts)


def select_lines(source: str, *which: str) -> str:
    """The lines for a datastore, and perhaps an API group. Raises ValueError for a block that does not end."""
    out, only = [], ""
    for line in source.splitlines():
        words = line.strip()
        if words.startswith("# begin only: "):
            only = words.removeprefix("# begin only: ")
        elif words == "# end only":
            only = ""
        elif only in ("", *which):
            text, mark, wanted = line.partition(" # only: ")
            if not mark or wanted.strip() in which:
                out.append(text)
    if only:
        raise ValueError(f"the block only for {only} does not end")
    return "\n".join(out) + "\n"


def in_native_group(text: str) -> str:
    """The rights that a manifest grants, in the other API group."""
    text = text.replace(f"apiGroups: [{GROUP}]", f"apiGroups: [{NATIVE_GROUP}]")
    return re.sub(r"(resources: \[|- )ipamconfigs\b", r"\1ipamconfigurations", text)


def render_all() -> dict[str, str]:
    """File name -> content."""
    source = (HERE / "source" / "calico.yaml").read_text().replace("@VERSION@", f"v{__version__}")
    definitions = render_documents(_HEAD, map(definition, KINDS))
    native = render_documents(_NATIVE_HEAD, map(native_definition, KINDS))
    etcd = select_lines(source, "etcd")
    relays = (HERE / "source" / "calico-typha.yaml").read_text().replace("@VERSION@", f"v{__version__}")
    webhooks = (HERE / "source" / "webhooks.yaml").read_text().replace("@VERSION@", f"v{__version__}")
    files = {
        "crds.yaml": definitions,
        "crds-v3.yaml": native,
        "admission-v3.yaml": render_documents(_ADMISSION_HEAD, mutating_policies(VERSIONS[0])),
        "calico-v3.yaml": in_native_group(select_lines(source, "kubernetes", "native"))
        + render_documents("", validating_policies())
        + native.removeprefix(_NATIVE_HEAD),
        "calico.yaml": select_lines(source, "kubernetes") + definitions.removeprefix(_HEAD),
        "calico-etcd.yaml": etcd,
        # a base of kustomize reads no file outside of its directory
        "kustomization.yaml": _BASE.format(resource="calico.yaml", datastore="Kubernetes"),
        "etcd/kustomization.yaml": _BASE.format(resource="calico-etcd.yaml", datastore="etcd"),
        "etcd/calico-etcd.yaml": etcd,
        "calico-typha.yaml": relays,
        "calico-typha-v3.yaml": in_native_group(relays),
        "calico-webhooks.yaml": webhooks,
        "calico-csi.yaml": (HERE / "source" / "csi.yaml").read_text(),
        "clusternetworkpolicies.yaml": render_documents(_POLICIES_HEAD, [cluster_policies.definition()]),
    }
    monitoring = {"monitoring/podmonitor.yaml": (HERE / "monitoring" / "podmonitor.yaml").read_text()}
    chart = render_chart({**files, **monitoring}, __version__)
    return {**files, **{f"chart/{name}": text for name, text in chart.items()}}


def main() -> int:
    stale = [name for name, text in render_all().items() if _read(HERE / name) != text]
    if sys.argv[1:] == ["--check"]:
        for name in stale:
            sys.stderr.write(f"{HERE / name} does not match its sources: run manifests/render.py\n")
        return 1 if stale else 0
    for name, text in render_all().items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_text(text)
    return 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
