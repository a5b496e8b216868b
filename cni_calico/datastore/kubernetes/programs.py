"""Credentials from a program: a kubeconfig's ``exec`` section (client.authentication.k8s.io/v1 and v1beta1).

Rule: the program gets the call's deadline, and a process group that is killed with it; its output is never repeated in
an error, because it may be a token. Source: Kubernetes' "client-go credential plugins".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, KernelError
from cni_calico.kernel.process import run

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class ProgramCredentials:
    """A token, or a certificate with its key (PEM), or both."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)


def ask_program(
    call: Mapping[str, Any], cluster: Mapping[str, Any], kubeconfig: str, environ: Mapping[str, str], deadline: Deadline
) -> ProgramCredentials:
    """Run the program of an ``exec`` section. Raises DatastoreDenied, DeadlineExceeded."""
    command, arguments, own_environ = _parse_call(call, kubeconfig)
    path = _find(command, kubeconfig, {**environ, **own_environ}.get("PATH", os.defpath))
    if path is None:
        raise DatastoreDenied(
            f"cannot get credentials for kubeconfig {kubeconfig}: there is no program {command}",
            details=str(call.get("installHint") or "install the program that the kubeconfig names, or use a token"),
        )
    info = json.dumps({"apiVersion": call["apiVersion"], "kind": "ExecCredential", "spec": _spec(call, cluster)})
    try:
        done = run([path, *arguments], env={**environ, **own_environ, "KUBERNETES_EXEC_INFO": info}, deadline=deadline)
    except KernelError as e:
        raise DatastoreDenied(f"cannot get credentials for kubeconfig {kubeconfig}: {e}") from e
    if done.rc:
        how = f"was killed by signal {-done.rc}" if done.rc < 0 else f"ended with status {done.rc}"
        raise DatastoreDenied(
            f"cannot get credentials for kubeconfig {kubeconfig}: {command} {how}",
            details="run it by hand: its output is not repeated here, because it may be a secret",
        )
    return _parse_answer(done.stdout, command, kubeconfig)


def _parse_call(call: Mapping[str, Any], kubeconfig: str) -> tuple[str, list[str], dict[str, str]]:
    command, arguments, environ = call.get("command"), call.get("args") or [], call.get("env") or []
    if call.get("apiVersion") not in VERSIONS:
        raise DatastoreDenied(
            f"cannot use kubeconfig {kubeconfig}: exec.apiVersion is not one of {', '.join(VERSIONS)}"
        )
    if not isinstance(command, str) or not command:
        raise DatastoreDenied(f"cannot use kubeconfig {kubeconfig}: exec.command is not a text")
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise DatastoreDenied(f"cannot use kubeconfig {kubeconfig}: exec.args is not a list of texts")
    try:
        own = {str(each["name"]): str(each["value"]) for each in environ}
    except (TypeError, KeyError):
        raise DatastoreDenied(
            f"cannot use kubeconfig {kubeconfig}: exec.env is not a list of names and values"
        ) from None
    return command, arguments, own


def _spec(call: Mapping[str, Any], cluster: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": False}
    if call.get("provideClusterInfo"):
        names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
        spec["cluster"] = {name: cluster[name] for name in names if name in cluster}
    return spec


def _find(command: str, kubeconfig: str, path: str) -> str | None:
    """With a slash it is relative to the kubeconfig's directory; without one it is searched in PATH."""
    directories = [os.path.dirname(kubeconfig) or "."] if "/" in command else path.split(":")
    for directory in directories:
        found = os.path.join(directory, command)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return os.path.abspath(found)
    return None


def _parse_answer(raw: bytes, command: str, kubeconfig: str) -> ProgramCredentials:
    try:
        status = json.loads(raw)["status"]
        found = ProgramCredentials(
            str(status.get("token") or ""),
            str(status.get("clientCertificateData") or "").encode(),
            str(status.get("clientKeyData") or "").encode(),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        found = ProgramCredentials()
    if not found.token and not (found.certificate and found.key):
        raise DatastoreDenied(f"cannot get credentials for kubeconfig {kubeconfig}: {command} returned none")
    return found
