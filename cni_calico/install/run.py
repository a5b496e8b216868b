"""The order of the installer's steps: once, and then again whenever the Secret changes.

Rule: a step that fails ends the run with the old network configuration in place; while sleeping, a failure is logged
and tried again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.install.settings import Settings
from cni_calico.install.steps import (
    apply_conflist,
    ensure_binaries,
    ensure_kubeconfig,
    ensure_tls_assets,
    read_template,
)
from cni_calico.install.template import render_conflist, template_values
from cni_calico.kernel.files import Files
from cni_calico.log import Log

TIMEOUT_S = 120.0
LOOK_S = 2.0  # how often the Secret is checked while sleeping


def install(settings: Settings, log: Log) -> None:
    """All steps once. Raises CalicoError."""
    files = Files()
    template = read_template(settings, files)
    # a template that can never become a configuration is reported before anything is changed
    render_conflist(template, template_values(settings, node=_host_name(), token="", tls_files=frozenset()))
    tls_files = ensure_tls_assets(settings, files)
    ensure_binaries(settings, log)
    token = ensure_kubeconfig(settings, files, log, Deadline.after(TIMEOUT_S))
    values = template_values(
        settings, node=_host_name(), token="" if token is None else token.text, tls_files=tls_files
    )
    apply_conflist(settings, files, render_conflist(template, values), log)


def _host_name() -> str:
    return os.uname().nodename.strip().lower()


def seen_secret(settings: Settings) -> tuple[tuple[str, int, int, int], ...]:
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


def keep_installed(settings: Settings, log: Log, *, wait: Callable[[float], bool], look_s: float = LOOK_S) -> None:
    """Copy the Secret's files again when they change, until ``wait(seconds)`` returns True."""
    seen = seen_secret(settings)
    while not wait(look_s):
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
