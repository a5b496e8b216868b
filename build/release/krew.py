#!/usr/bin/env python3
"""krew's manifest of the plugin ``calico`` of kubectl: ``krew.py --releases URL DIR >calico.yaml``; DIR: a release.

Rule: the sums are those of SHA256SUMS; one that is missing stops it.
"""

from __future__ import annotations

from listed import Listed, run

ARCHITECTURES = ("amd64", "arm64")
_HEAD = """apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: calico
spec:
  version: v{version}
  homepage: {homepage}
  shortDescription: Resources, addresses and policies of Calico
  description: |
    calicoctl as a plugin of kubectl, for clusters whose Calico keeps its data in
    Kubernetes: resources with validation, address management, what a policy
    decides and why, checks of a cluster.
  platforms:
"""
_PLATFORM = """    - selector:
        matchLabels:
          os: linux
          arch: {architecture}
      uri: {address}/{file}
      sha256: {digest}
      bin: kubectl-calico
"""


def render_manifest(listed: Listed, homepage: str) -> str:
    """Raises Unlisted."""
    text = _HEAD.format(version=listed.version, homepage=homepage)
    for architecture in ARCHITECTURES:
        file = f"kubectl-calico_{listed.version}_linux_{architecture}.tar.gz"
        text += _PLATFORM.format(
            architecture=architecture, address=listed.address, file=file, digest=listed.sum_of(file)
        )
    return text


if __name__ == "__main__":
    run("Print krew's manifest of a release.", render_manifest)
