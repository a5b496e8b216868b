"""Renews the token in the plugin's kubeconfig: a new token of its service account long before the old one expires.

Rule: the file is replaced in one step and keeps mode 0600; after a failure it is unchanged, and further attempts follow
at growing intervals. While the pod's own token stands in, it is copied again when the kubelet has renewed it, and the
account's is asked for each time. A thread of the agent runs it; it ends when ``wait`` returns True.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import backoff_s
from cni_calico.datastore.kubernetes.login import read_login
from cni_calico.datastore.kubernetes.token import (
    LIFETIME_S,
    Token,
    find_token,
    refresh_pause_s,
    render_kubeconfig,
    stand_in_warning,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError, DeadlineExceeded, InstallFailed
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.access import CNI_ACCOUNT

TIMEOUT_S = 30.0
LONGEST_RETRY_S = 300.0
Wait = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class TokenTarget:
    """The token's service account, and the kubeconfig to write: ``path`` as this process sees it.

    ``own``: the file with the token of the pod we run in, "" if we run in none.
    """

    path: str
    namespace: str = "kube-system"
    account: str = CNI_ACCOUNT
    lifetime_s: int = LIFETIME_S
    own: str = ""


def ensure_token(api: KubernetesAPI, target: TokenTarget, files: Files, deadline: Deadline) -> Token:
    """Write a new token into the kubeconfig, with the same server and trust as ``api`` uses.

    Raises DatastoreError, DeadlineExceeded, InstallFailed.
    """
    token = find_token(api, target.namespace, target.account, deadline, own=target.own, lifetime_s=target.lifetime_s)
    login = read_login(api.access, deadline)
    ca = None if login.insecure or login.ca is None else login.ca
    kubeconfig = render_kubeconfig(login.url, token.text, ca)
    try:
        if not files.holds(target.path, kubeconfig):
            files.write_atomic(target.path, kubeconfig, 0o600)
    except OSError as e:
        raise InstallFailed(f"cannot write {target.path}: {(e.strerror or str(e)).lower()}") from e
    return token


def keep_token(
    api: KubernetesAPI,
    target: TokenTarget,
    files: Files,
    log: Log,
    *,
    wait: Wait,
    random: Callable[[], float] = lambda: os.urandom(1)[0] / 255,
    tell: Callable[[str], None] = lambda why: None,
) -> None:
    """Refresh the token until ``wait(seconds)`` is true. ``tell`` is called after each attempt with the reason of its
    failure, "" for success.
    """
    failures, stood_in = 0, ""
    while True:
        try:
            token = ensure_token(api, target, files, Deadline.after(TIMEOUT_S))
            failures = 0
            pause_s = refresh_pause_s(token, random=random())
            if token.stands_in and token.stands_in != stood_in:
                log.warning(stand_in_warning(token))
            stood_in = token.stands_in
            log.debug(f"refreshed {target.path}, next time in {pause_s:.0f} s")
            tell("")
        except (DatastoreError, DeadlineExceeded, InstallFailed) as e:
            failures += 1
            pause_s = min(LONGEST_RETRY_S, backoff_s(failures) * 10)
            _log_failure(log, e, pause_s)
            tell(str(e))
        if wait(pause_s):
            return


def _log_failure(log: Log, error: CalicoError, pause_s: float) -> None:
    log.error(f"{error.message}; trying again in {pause_s:.0f} s" + (f" ({error.details})" if error.details else ""))
