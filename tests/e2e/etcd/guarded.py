"""An etcd with TLS and authentication whose users have the roles that ``calicoctl datastore etcd-roles`` prints, made
by etcdctl from that text.

Rule: users are known by the common name of their certificate, but for those in PASSWORDS, who log in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cni_calico.ctl.datastore.etcd_roles import AGENT, CALICOCTL, CONTROLLERS, PLUGIN
from cni_calico.datastore.etcd.config import EtcdConfig
from tests.conftest import ROOT
from tests.e2e.etcd.certificates import Authority
from tests.netns.agents import Store

PASSWORDS = {CALICOCTL: "c4licoctl-w0rd", CONTROLLERS: "c0ntrollers-w0rd"}
ANYBODY = "anybody"  # a certificate without rights, for users who log in


def printed(*options: str) -> str:
    """What an administrator gets."""
    argv = [sys.executable, "-m", "cni_calico.ctl.main", "datastore", "etcd-roles", *options]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@dataclass
class Guarded:
    """``prefix`` goes before commands that reach it (nsenter ...)."""

    url: str
    authority: Authority
    prefix: Sequence[str] = ()

    def protect(self, directory: Path) -> Guarded:
        """From now on everybody has a name, and only the printed rights."""
        self.etcdctl("user", "add", "root", "--no-password")
        self.etcdctl("role", "add", "root")
        self.etcdctl("user", "grant-role", "root", "root")
        for name, password in PASSWORDS.items():
            (directory / name).write_text(password)
        script = printed("--passwords", str(directory))
        for name in (AGENT, PLUGIN):
            self.etcdctl("user", "add", name, "--no-password")  # a user that exists stays as it is
        self.shell(script)
        self.shell(script)  # a second time: nothing fails
        self.etcdctl("auth", "enable")
        return self

    def etcdctl(self, *words: str) -> str:
        return self._run(["etcdctl", *words])

    def shell(self, script: str) -> str:
        return self._run(["sh"], script)

    def _run(self, argv: list[str], stdin: str = "") -> str:
        certificate, key = self.files("root")
        environ = {
            "PATH": os.environ["PATH"],
            "ETCDCTL_API": "3",
            "ETCDCTL_ENDPOINTS": self.url,
            "ETCDCTL_CACERT": str(self.authority.certificate),
            "ETCDCTL_CERT": str(certificate),
            "ETCDCTL_KEY": str(key),
        }
        done = subprocess.run(
            [*self.prefix, *argv], input=stdin, env=environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def files(self, user: str) -> tuple[Path, Path]:
        certificate, key = (self.authority.directory / f"{user}.{end}" for end in ("crt", "key"))
        return (certificate, key) if certificate.exists() else self.authority.issue(user, user, "clientAuth")

    def access(self, user: str) -> dict[str, str]:
        """A DatastoreConfig's fields, and a network configuration's."""
        certificate, key = self.files(ANYBODY if user in PASSWORDS else user)
        return {
            "etcd_key_file": str(key),
            "etcd_cert_file": str(certificate),
            "etcd_ca_cert_file": str(self.authority.certificate),
        }

    def environ(self, user: str) -> dict[str, str]:
        login = {"ETCD_USERNAME": user, "ETCD_PASSWORD": PASSWORDS[user]} if user in PASSWORDS else {}
        files = {name.upper(): path for name, path in self.access(user).items()}
        return {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": self.url, **files, **login}

    def config(self, user: str) -> EtcdConfig:
        access = self.access(user)
        return EtcdConfig(
            (self.url,),
            key_file=access["etcd_key_file"],
            cert_file=access["etcd_cert_file"],
            ca_file=access["etcd_ca_cert_file"],
            username=user if user in PASSWORDS else "",
            password=PASSWORDS.get(user, ""),
        )


class GuardedRecords(Store):
    """For a node: calico-node and the plugin have a certificate each."""

    def __init__(self, etcd: Guarded) -> None:
        super().__init__(Path("/nonexistent"))
        self._etcd = etcd

    def environ(self) -> dict[str, str]:
        return self._etcd.environ(AGENT)

    def conf(self) -> dict[str, str]:
        named = {"datastore_type": "etcdv3", "etcd_endpoints": self._etcd.url}
        return {**named, **self._etcd.access(PLUGIN)}
