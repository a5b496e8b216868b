"""Certificates for tests, made with the openssl command: a CA, server certificates for serverAuth only, clients."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Authority:
    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    def issue(self, name: str, common_name: str, usage: str, addresses: str = "") -> tuple[Path, Path]:
        """(certificate, key) with one extended key usage; ``addresses`` as in "IP:127.0.0.1,DNS:localhost"."""
        base = self.directory / name
        key, request, certificate = (base.with_suffix(s) for s in (".key", ".csr", ".crt"))
        extensions = base.with_suffix(".ext")
        names = f"subjectAltName={addresses}\n" if addresses else ""
        extensions.write_text(f"basicConstraints=CA:FALSE\nextendedKeyUsage={usage}\n{names}")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key),
                 "-out", str(request), "-subj", f"/CN={common_name}")  # fmt: skip
        _openssl("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey",
                 str(self.directory / "ca.key"), "-CAcreateserial", "-days", "2", "-extfile", str(extensions),
                 "-out", str(certificate))  # fmt: skip
        return certificate, key


def make_authority(directory: Path, name: str = "test-ca") -> Authority:
    directory.mkdir(parents=True, exist_ok=True)
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
             str(directory / "ca.key"), "-out", str(directory / "ca.crt"), "-days", "2", "-subj", f"/CN={name}",
             "-addext", "basicConstraints=critical,CA:TRUE")  # fmt: skip
    return Authority(directory)
