"""awsSrcDstCheck: EC2's check of sources and destinations at this instance's first interface.

Rule: while it is on, AWS drops what goes between nodes without encapsulation; so the node is not ready until the wanted
state has been brought about once. It is tried again forever, and done once for each wanted state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.nodeagent.aws.credentials import domain_of, find_credentials
from cni_calico.nodeagent.aws.documents import failure_of, parse_interface
from cni_calico.nodeagent.aws.instance import AwsInstance, InstanceMetadata
from cni_calico.nodeagent.aws.signing import AwsCredentials, render_form, sign_post
from cni_calico.nodeagent.aws.web import ask
from cni_calico.nodeagent.context.kinds import NOT_CHANGED

UNMET = "aws_unmet"
_TRY_S, _FIRST_RETRY_S, _LAST_RETRY_S = 20.0, 30.0, 480.0
_TRIES, _BETWEEN_S = 3, 1.0
_VERSION = "2016-11-15"


class SourceCheck:
    """``use`` is told what is wanted; ``start_thread`` runs its argument in a thread of its own until ``stopping``."""

    def __init__(
        self,
        environ: Mapping[str, str],
        log: Log,
        facts: MutableMapping[str, Any],
        start_thread: Callable[[Callable[[], None]], object],
        stopping: threading.Event,
    ) -> None:
        self._environ, self._log, self._facts = environ, log, facts
        self._start_thread, self._stopping = start_thread, stopping
        self._task = (0, NOT_CHANGED)  # each change of what is wanted has a number
        self._wake = threading.Event()
        self._started = False
        self._said = Said(log)

    def use(self, wanted: str) -> None:
        """Enable, Disable or DoNothing; for one thread."""
        task, before = self._task
        if wanted == before:
            return
        self._task = (task + 1, wanted)
        self._facts[UNMET] = [] if wanted == NOT_CHANGED else [f"awsSrcDstCheck {wanted} has not been carried out yet"]
        self._wake.set()
        if not self._started:
            self._started = True
            self._start_thread(self._run)

    def _run(self) -> None:
        retry, done = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S), 0
        while not self._stopping.is_set():
            self._wake.clear()
            task, wanted = self._task
            if task == done or wanted == NOT_CHANGED or self._try(task, wanted):
                done = task
                retry.reset()
                self._wait(0.0)
            else:
                self._wait(retry.next())

    def _wait(self, pause_s: float) -> None:
        """For something else to be wanted, or for the pause, 0 for ever; the end is noticed soon."""
        end = time.monotonic() + pause_s
        while not self._stopping.is_set() and not self._wake.wait(0.5):
            if pause_s and time.monotonic() >= end:
                return

    def _try(self, task: int, wanted: str) -> bool:
        try:
            bring_about(self._environ, enabled=wanted == "Enable", wait=self._stopping.wait)
        except (CalicoError, OSError, ValueError) as e:  # ValueError: a token that is no text
            details = f" ({e.details})" if isinstance(e, CalicoError) and e.details else ""
            text = f"awsSrcDstCheck {wanted}: {e}{details}"
            if task == self._task[0]:
                self._facts[UNMET] = [text]
            self._said.say("aws", [text], "error")
            return False
        if task == self._task[0]:
            self._facts[UNMET] = []
        self._said.say("aws", [])
        self._log.info(f"awsSrcDstCheck {wanted}: carried out at this instance's first interface")
        return True


def bring_about(environ: Mapping[str, str], *, enabled: bool, wait: Callable[[float], bool]) -> None:
    """Raises TryAgain, OSError."""
    deadline = Deadline.after(_TRY_S)
    metadata = InstanceMetadata(environ, deadline)
    instance = metadata.read_instance()
    credentials = find_credentials(
        environ, instance.region, deadline, read_file=Files().read_text, of_instance=metadata.read_credentials
    )
    ec2 = Ec2(environ, instance, credentials, wait)
    found = parse_interface(ec2.ask("DescribeInstances", {"InstanceId.1": instance.id}))
    if found.checked == enabled:
        return
    change = {"NetworkInterfaceId": found.id, "SourceDestCheck.Value": "true" if enabled else "false"}
    ec2.ask("ModifyNetworkInterfaceAttribute", change)


class Ec2:
    """EC2's API, for one instance."""

    def __init__(
        self,
        environ: Mapping[str, str],
        instance: AwsInstance,
        credentials: AwsCredentials,
        wait: Callable[[float], bool],
    ) -> None:
        given = environ.get("AWS_ENDPOINT_URL_EC2", "").strip() or environ.get("AWS_ENDPOINT_URL", "").strip()
        self._url = given or f"https://ec2.{instance.region}.{domain_of(instance.region)}/"
        self._region, self._credentials, self._wait = instance.region, credentials, wait

    def ask(self, action: str, parameters: Mapping[str, str]) -> str:
        """The text of the answer; what passes is tried again. Raises TryAgain."""
        body = render_form({"Action": action, "Version": _VERSION, **parameters})
        failed = TryAgain(f"cannot ask EC2 for {action}")
        for attempt in range(_TRIES):
            if attempt and self._wait(_BETWEEN_S):
                break
            now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
            headers = sign_post(self._url, body, self._credentials, region=self._region, service="ec2", timestamp=now)
            answer = ask("POST", self._url, Deadline.after(_TRY_S), headers, body)
            if answer.status == 200:
                return answer.text
            failure = failure_of(answer, f"ask EC2 for {action}")
            failed = failure.error
            if not failure.passes:
                break
        raise failed
