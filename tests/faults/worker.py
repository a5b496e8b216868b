"""A process that makes random CNI calls for containers of its own, as a runtime does, and notes what was answered.

Rule: every decision comes from its own generator, seeded by the run's seed and its number. A call whose outcome is not
known is followed by DEL until one succeeds, as the CNI specification asks of runtimes, or by a GC that does not name
the container. Every worker has a network of its own: what its GC names is then all that may be there.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from cni_calico.kernel import netns
from tests.deadlines import until
from tests.e2e.host import Node
from tests.faults import calls
from tests.faults.calls import Limits
from tests.faults.history import Operation
from tests.faults.spaces import renew
from tests.netns.namespaces import Namespace

PATIENCE_S = 150.0
LONGEST_S = 12 * 3600.0
CHECK_FAILED = 132
VALID = "cni.dev/valid-attachments"


@dataclass
class Slot:
    """A place for one attachment at a time. ``fixed``: the container ID of an attachment that calico-ipam alone serves;
    ``pod``: the arguments of a pod, whose sandboxes follow one another.
    """

    pod_ns: Namespace
    ifname: str = "eth0"
    fixed: str = ""
    pod: str = ""
    container: str = ""
    addresses: tuple[str, ...] = ()
    unsure: bool = False  # something may be there: only DEL or GC may follow
    result: dict[str, Any] | None = None
    astray: bool = False  # its host end has another name: only the pod's end tells whose it is
    old: list[str] = field(default_factory=list)  # earlier sandboxes of the pod whose DEL has not succeeded yet

    @property
    def plugin(self) -> str:
        return "calico-ipam" if self.fixed else "calico"


@dataclass
class Options:
    """``clock``: the variables that move a process's time of day, for calls that are executed; ``hold``: no call begins
    while this file exists; ``also``: kinds of faults that were asked for; ``group``: a cgroup
    without room for threads.
    """

    output: str
    bundle: Path | None = None
    clock: Mapping[str, str] = field(default_factory=dict)
    hold: Path | None = None
    also: tuple[str, ...] = ()
    group: Path | None = None


class Worker:
    def __init__(self, node: Node, number: int, seed: int, slots: list[Slot], options: Options) -> None:
        self.node = node
        self.seed = f"{seed}/{number}"
        self.random = random.Random(self.seed)
        self.name = f"{seed:x}-{number}"
        self.network = f"net{number}"
        self.slots = slots
        self.options = options
        self.count = 0
        self.output = os.open(options.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.faults: dict[str, int] = {}
        self.problems: list[str] = []
        self.document: dict[str, Any] = {}

    def run(self, operations: int) -> None:
        netns.enter(os.open(self.node.host.path, os.O_RDONLY))
        for step in range(operations):
            if self.options.hold is not None and self.options.hold.exists():
                until(lambda hold=self.options.hold: not hold.exists(), "the run may go on", LONGEST_S, pause_s=0.5)
            self.step(step)

    def step(self, number: int) -> None:
        """Its decisions depend on its number and on what the slots have come to, not on how long earlier steps took."""
        self.random = random.Random(f"{self.seed}/{number}")
        self._act(self.random.choice(self.slots))

    def living(self) -> list[tuple[str, tuple[str, ...]]]:
        """(container ID, addresses) of what certainly lives."""
        return [(slot.container, slot.addresses) for slot in self.slots if slot.container and not slot.unsure]

    def drain(self) -> None:
        """DEL until nothing is left, and a GC of a network without containers."""
        for slot in self.slots:
            for container in (*slot.old, slot.container):
                path = slot.pod_ns.path if slot.astray and container == slot.container else ""
                if container and not self._repeated(partial(self._call, "DEL", slot, container, path, torment=False)):
                    self.problems.append(f"DEL of {container} never succeeded: {self.document}")
        if not self._repeated(partial(self._collect, [], torment=False)):
            self.problems.append(f"GC of {self.network} never succeeded: {self.document}")

    @staticmethod
    def _repeated(call: Callable[[], Operation]) -> bool:
        """Whether it succeeds, now that all faults have ended."""
        until = monotonic() + PATIENCE_S
        for _ in range(50):
            if call().rc == 0:
                return True
            if monotonic() > until:
                break
        return False

    def _act(self, slot: Slot) -> None:
        chance = self.random.random()
        if chance < 0.02:
            self._call("STATUS", slot, "", "")
        elif chance < 0.04:
            self._forget()
        elif slot.old and chance < 0.3:
            self._delete_old(slot)
        elif not slot.container:
            self._add(slot)
        elif slot.unsure or chance < 0.7:
            self._delete(slot)
        elif chance < 0.75:
            self._break(slot)
        elif chance < 0.85:
            self._check(slot)
        else:
            self._look(slot)

    def _add(self, slot: Slot) -> None:
        self.count += 1
        slot.container, slot.unsure = slot.fixed or f"{self.name}-{self.count}", False
        done = self._call("ADD", slot, slot.container, slot.pod_ns.path)
        slot.unsure, slot.addresses, slot.result = done.rc != 0, done.addresses, self.document

    def _delete(self, slot: Slot) -> None:
        path = "" if self.random.random() < 0.2 else slot.pod_ns.path
        told = slot.result if slot.result and not slot.unsure and self.random.random() < 0.5 else None
        done = self._call("DEL", slot, slot.container, path, result=told)
        slot.unsure = True
        if done.rc == 0:
            if self.random.random() < 0.1:  # runtimes repeat them
                self._call("DEL", slot, slot.container, slot.pod_ns.path)
            self._empty(slot, renew=not path)  # a runtime ends the namespace too
        elif slot.pod and self.random.random() < 0.3:  # the next sandbox, and the old one's DEL again later
            slot.old.append(slot.container)
            self._empty(slot, renew=True)

    def _delete_old(self, slot: Slot) -> None:
        """While the pod's next sandbox may live, in a namespace whose path is the same."""
        path = slot.pod_ns.path if self.random.random() < 0.3 else ""
        if self._call("DEL", slot, slot.old[0], path).rc == 0:
            slot.old.pop(0)

    def _empty(self, slot: Slot, *, renew: bool) -> None:
        slot.container, slot.addresses, slot.unsure, slot.result, slot.astray = "", (), False, None, False
        if renew:
            self._renew(slot)

    def _forget(self) -> None:
        """The runtime collects garbage; some containers it has lost, and their namespaces with them."""
        gone = [s for s in self.slots if s.container and (s.unsure or s.old or self.random.random() < 0.1)]
        kept = [slot for slot in self.slots if slot.container and slot not in gone]
        asked = [f"{container}/{slot.ifname}" for slot in gone for container in (*slot.old, slot.container)]
        if self._collect(kept, torment=True, ending=asked).rc == 0:
            for slot in gone:
                slot.old.clear()
                self._empty(slot, renew=True)
        else:
            for slot in gone:
                slot.unsure = True

    def _check(self, slot: Slot) -> None:
        done = self._call("CHECK", slot, slot.container, slot.pod_ns.path, result=slot.result)
        if done.code == CHECK_FAILED:
            self.problems.append(f"CHECK of {slot.container}, which lives: {json.dumps(self.document)[:500]}")

    def _look(self, slot: Slot) -> None:
        """A container that lives has its network: told by ``ip``."""
        if slot.fixed:
            return
        found = subprocess.run(
            ["ip", "-n", slot.pod_ns.name, "-o", "addr", "show", "dev", slot.ifname], capture_output=True, text=True
        ).stdout
        for address in slot.addresses:
            if address.split("/")[0] not in found:
                self.problems.append(f"{slot.container} lives and has lost {address}")

    def _break(self, slot: Slot) -> None:
        """The interface or the whole namespace goes away under a container, or has another name."""
        if slot.fixed:
            return
        hows = ["interface removed", "namespace removed", "interface renamed"]
        how = self.random.choice(hows + ["host end renamed"] * ("host-end" in self.options.also))
        self._count(how)
        if how == "host end renamed":
            self._rename_host_end(slot)
        elif how == "interface removed":
            subprocess.run(["ip", "-n", slot.pod_ns.name, "link", "del", "eth0"], capture_output=True)
        elif how == "interface renamed":
            for words in (("down",), ("name", "renamed"), ("up",)):
                name = "renamed" if words == ("up",) else "eth0"
                subprocess.run(["ip", "-n", slot.pod_ns.name, "link", "set", name, *words], capture_output=True)
        else:
            self._renew(slot)
        slot.unsure = True

    def _rename_host_end(self, slot: Slot) -> None:
        slot.astray = True
        name = str(slot.result["interfaces"][0]["name"]) if slot.result else ""
        for words in ((name, "down"), (name, "name", f"renamed{self.count}"), (f"renamed{self.count}", "up")):
            subprocess.run(["ip", "link", "set", *words], capture_output=True)

    def _renew(self, slot: Slot) -> None:
        renew(slot.pod_ns)

    def _count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    # -- one call ------------------------------------------------------------------------------------------------------

    def _collect(self, kept: list[Slot], *, torment: bool, ending: list[str] | None = None) -> Operation:
        valid = [{"containerID": slot.container, "ifname": slot.ifname} for slot in kept]
        slot = self.slots[0]
        return self._call("GC", slot, "", "", torment=torment, ending=ending or [], changes={VALID: valid})

    def _call(
        self,
        command: str,
        slot: Slot,
        container: str,
        path: str,
        *,
        torment: bool = True,
        result: dict[str, Any] | None = None,
        ending: list[str] | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> Operation:
        plugin = "calico" if command in ("GC", "STATUS") else slot.plugin
        args = slot.pod if container else ""
        environ = {k: v for k, v in self.node.env(command, container, path, slot.ifname, args).items() if v}
        if self.options.bundle is not None and self.random.random() < 0.05:
            environ |= self.options.clock
            self._count("call with another time of day")
        conf = self.node.conf(name=self.network, **(changes or {}), **({"prevResult": result} if result else {}))
        name = f"{container}/{slot.ifname}" if container else ""
        about = ending if ending is not None else [name]
        self._note({"begins": about})
        began = monotonic()
        limits = self._limits() if torment else None
        running = calls.begin(plugin, environ, json.dumps(conf).encode(), self.options.bundle, limits)
        if torment:
            self._torment(running)
        rc, out, late = running.finish(PATIENCE_S)
        ended = monotonic()
        if limits is not None and rc not in (0, 1):
            rc, out = None, b""  # it could not even say so
        if late:
            self.problems.append(f"{command} of {container} took {ended - began:.0f} s")
        self.document = json.loads(out) if rc is not None and out.strip() else {}
        addresses = tuple(ip["address"].partition("/")[0] for ip in self.document.get("ips", ()))
        code = int(self.document.get("code") or 0)
        if rc not in (0, 1, None):
            self.problems.append(f"{command} of {container} ended with {rc}: {out[-500:]!r}")
        text = f"{self.document.get('msg', '')} ({self.document.get('details', '')})"[:600] if code else ""
        operation = Operation(began, ended, command, name, rc, addresses, code, text)
        for each in about or [""]:
            self._note({**asdict(operation), "container": each})
        return operation

    def _note(self, entry: Mapping[str, Any]) -> None:
        os.write(self.output, json.dumps(entry).encode() + b"\n")

    def _limits(self) -> Limits | None:
        """Of the call's own process."""
        if "limits" not in self.options.also or self.random.random() > 0.08:
            return None
        offered = [
            Limits("descriptors", self.random.randrange(3, 40)),
            Limits("memory", self.random.randrange(8, 400)),
            *([Limits("threads", group=self.options.group)] if self.options.group is not None else []),
        ]
        chosen = self.random.choice(offered)
        self._count(f"call short of {chosen.what}")
        return chosen

    def _torment(self, running: calls.Running) -> None:
        own = random.Random(self.random.random())  # how much of it is used depends on when the call ends
        chance = own.random()
        if chance > 0.10:
            return
        # most calls of a server take a few milliseconds, most others a tenth of a second or more
        if select.select([running.answer], [], [], 0.12 * own.random() ** 3)[0]:
            return  # it has answered already
        if chance < 0.05:
            self._count("plugin killed")
            os.kill(running.pid, signal.SIGKILL)
        elif chance < 0.06:
            self._count("plugin asked to end")
            os.kill(running.pid, signal.SIGTERM)
        else:
            self._count("plugin stopped")
            os.kill(running.pid, signal.SIGSTOP)
            select.select([], [], [], own.uniform(0.05, 0.5))
            os.kill(running.pid, signal.SIGCONT)
