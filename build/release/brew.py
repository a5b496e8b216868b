#!/usr/bin/env python3
"""Homebrew's formula of calicoctl, from a release directory: ``brew.py --releases URL DIR >cni-calico.rb``.

Rule: the sum is that of SHA256SUMS; a missing one stops it. It installs the zip application, which any system runs.
"""

from __future__ import annotations

from listed import Listed, run

_FORMULA = """class CniCalico < Formula
  desc "Calico's command-line for clusters that keep its data in Kubernetes"
  homepage "{homepage}"
  url "{address}/{file}", using: :nounzip
  version "{version}"
  sha256 "{digest}"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    libexec.install "{file}" => "calicoctl.pyz"
    (bin/"calicoctl").write <<~SH
      #!/bin/sh
      exec "#{{Formula["python@3.13"].opt_bin}}/python3.13" "#{{libexec}}/calicoctl.pyz" "$@"
    SH
    chmod 0755, bin/"calicoctl"
    bin.install_symlink "calicoctl" => "kubectl-calico"
  end

  test do
    assert_match "{version}", shell_output("#{{bin}}/calicoctl version --client")
  end
end
"""


def render_formula(listed: Listed, homepage: str) -> str:
    """Raises Unlisted."""
    file = f"calicoctl-{listed.version}.pyz"
    return _FORMULA.format(
        homepage=homepage, address=listed.address, file=file, version=listed.version, digest=listed.sum_of(file)
    )


if __name__ == "__main__":
    run("Print Homebrew's formula of a release.", render_formula)
