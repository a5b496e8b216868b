"""The order of the installer's steps: once, and then again what has to follow the Secret and the token.

Rule: a step that fails ends the run with the old network configuration in place; while sleeping, a failure is logged
and tried again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cni_calico.backoff import Backoff
from cni_calico.datastore.kubernetes.token import Token, read_pod_token, refresh_pause_s, stand_in_warning
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.install.settings import Settings
from cni_calico.install.steps import (
    apply_conflist,
    conflist_path,
    ensure_binaries,
    ensure_kubeconfig,
    ensure_tls_assets,
    find_api_group,
    pod_token_file,
    read_template,
)
from cni_calico.install.template import render_conflist, template_values
from cni_calico.kernel.files import Files
from cni_calico.log import Log

TIMEOUT_S = 120.0
RENEWAL_TIMEOUT_S = 20.0
LOOK_S = 2.0  # how often the Secret and the pod's token are checked while sleeping


def install(settings: Settings, log: Log) -> Token | None:
    """All steps once; returns the token that the plugin was given. Raises CalicoError."""
    files = Files()
    template = read_template(settings, files)
    # a template that can never become a configuration is reported before anything is changed
    render_conflist(template, template_values(settings, node=_host_name(), token="", tls_files=frozenset()))
    tls_files = ensure_tls_assets(settings, files)
    ensure_binaries(settings, log)
    token = ensure_kubeconfig(settings, files, log, Deadline.after(TIMEOUT_S))
    if token is not None and token.stands_in:
        log.warning(stand_in_warning(token))
    apply_conflist(settings, files, _conflist(settings, template, token, tls_files), log)
    return token


def _conflist(settings: Settings, template: str, token: Token | None, tls_files: frozenset[str]) -> str:
    text = "" if token is None else token.text
    group = find_api_group(settings, template, Files(), Deadline.after(TIMEOUT_S))
    values = template_values(settings, node=_host_name(), token=text, tls_files=tls_files, api_group=group)
    return render_conflist(template, values)


def _host_name() -> str:
    return os.uname().nodename.strip().lower()


SeenSecret = tuple[tuple[str, int, int, int], ...]


def seen_secret(settings: Settings) -> SeenSecret:
    """A value that differs once the Secret has changed: names, inodes, times and sizes of its files."""
    directory = settings.inside(settings.tls_assets_dir)
    found = []
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    for name in names:
        try:
            status = os.stat(f"{directory}/{name}")
        except OSError:
            continue
        found.append((name, status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


class TokenUpkeep:
    """Gives the plugin a new token before the present one ends, and at once when the pod's own, which stands in for
    it, was renewed.

    calico-node does the same where it sees the kubeconfig; beside a calico-node that does not, nobody else would.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        token: Token,
        *,
        now: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = lambda: os.urandom(1)[0] / 255,
    ) -> None:
        self._settings, self._log, self._token = settings, log, token
        self._now, self._random = now, random
        self._backoff, self._failed = Backoff(LOOK_S, 300.0), False
        self._due = now() + refresh_pause_s(token, random=random())

    def look(self) -> None:
        """Renew the token if that is due; a failure is logged and tried again."""
        if self._now() < self._due and (self._failed or not self._pod_has_another()):
            return
        try:
            self._renew()
            self._failed = False
        except CalicoError as e:
            self._failed, pause_s = True, self._backoff.next()
            self._due = self._now() + pause_s
            self._log.error(f"{e.message}; trying again in {pause_s:.0f} s" + (f" ({e.details})" if e.details else ""))
        else:
            self._backoff.reset()
            self._due = self._now() + refresh_pause_s(self._token, random=self._random())

    def _pod_has_another(self) -> bool:
        if not self._token.stands_in:
            return False
        text = read_pod_token(pod_token_file(self._settings))
        return text not in ("", self._token.text)

    def _renew(self) -> None:
        settings, files, before = self._settings, Files(), self._token
        token = ensure_kubeconfig(settings, files, self._log, Deadline.after(RENEWAL_TIMEOUT_S))
        if token is None or token.text == before.text:
            return
        if token.stands_in and token.stands_in != before.stands_in:
            self._log.warning(stand_in_warning(token))
        self._renew_conflist(token, files)
        self._token = token

    def _renew_conflist(self, token: Token, files: Files) -> None:
        """If the template has the token too; a configuration that was removed stays away."""
        settings = self._settings
        template = read_template(settings, files)
        if "__SERVICEACCOUNT_TOKEN__" not in template or not files.exists(conflist_path(settings)):
            return
        tls_files = ensure_tls_assets(settings, files)
        apply_conflist(settings, files, _conflist(settings, template, token, tls_files), self._log)


def keep_installed(
    settings: Settings,
    log: Log,
    token: Token | None,
    seen: SeenSecret,
    *,
    wait: Callable[[float], bool],
    look_s: float = LOOK_S,
) -> None:
    """Copy the Secret's files again when they are no longer as ``seen``, and keep the plugin's token valid, until
    ``wait(seconds)`` returns True.
    """
    upkeep = None if token is None else TokenUpkeep(settings, log, token)
    while not wait(look_s):
        if upkeep is not None:
            upkeep.look()
        now = seen_secret(settings)
        if now == seen:
            continue
        try:
            ensure_tls_assets(settings, Files())
            log.info("the TLS assets have changed and were copied")
            seen = now
        except CalicoError as e:
            log.error(e.message)


def wait_for(stopped: Callable[[], bool]) -> Callable[[float], bool]:
    """A ``wait`` that ends early when ``stopped``."""

    def wait(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not stopped() and time.monotonic() < until:
            time.sleep(min(0.2, max(0.0, until - time.monotonic())))
        return stopped()

    return wait
