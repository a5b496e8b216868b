"""Carries out releases that the CNI plugin recorded while the datastore was down, if no call does it.

Rule: only releases owed to the agent's own datastore: a path in a record names a file as the caller saw it, which may
not be ours. The plugin's locks are taken, so that only one process carries out each release.
"""

from __future__ import annotations

from cni_calico.daemon.keeper import Keeper
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy, TryAgain
from cni_calico.kernel.lock import file_lock
from cni_calico.log import Log
from cni_calico.nodeagent.context.agent import Context
from cni_calico.plugin import owed
from cni_calico.plugin.call.services import Services

LOOK_S = 5.0
PAY_S = 20.0


class _Once(Log):
    """Passes on a text only if it is new: a release that cannot be carried out is tried again and again."""

    def __init__(self, log: Log) -> None:
        super().__init__("none", stderr=False)
        self._log = log
        self.forget()

    def write(self, level: str, text: str) -> None:
        self._said.once(text, level)

    def forget(self) -> None:
        self._said = Said(self._log)


def _own_services(context: Context, log: Log) -> Services:
    """Services for the agent's own datastore and directories."""
    services = Services(files=context.files, open_store=lambda config: context.store)
    services.run_dir, services.state_dir = context.settings.run_dir, context.settings.state_dir
    services.log = log
    return services


class Owed:
    """``look`` carries out some of the recorded releases; the next call continues after them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._log = _Once(context.log)
        self._last = ""

    def look(self) -> None:
        """Raises TryAgain while a release has to wait."""
        settings, files = self.context.settings, self.context.files
        own = self.context.config
        if own is None or not files.names(owed.directory(settings.state_dir)):
            self._log.forget()
            return
        from cni_calico.plugin.pay import LOCK_NAME, pay_owed  # what a DEL needs, where one is owed

        try:
            with file_lock(files.path(f"{settings.run_dir}/{LOCK_NAME}"), Deadline.after(0)):
                services, deadline = _own_services(self.context, self._log), Deadline.after(PAY_S)
                done = pay_owed(services, own, deadline, after=self._last)
        except AttachmentBusy:
            return  # a call is working on it
        self._last = done.last
        if done.kept:
            raise TryAgain("cannot carry out all DELs that were recorded while the datastore was away")


def owed_keeper(context: Context) -> Keeper:
    """Looks for recorded releases now and then: an empty directory costs nothing."""
    return Keeper("recorded DELs", Owed(context).look, LOOK_S, context.log, context.troubles)
