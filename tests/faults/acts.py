"""What goes wrong around the calls, one thing after the other on any host or member, until the run has ended.

Rule: every act puts right what it did, before the next one; what ends by itself is started again. A server that keeps
running and does not answer once its trouble is over is a violation.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.faults.calls import PIDS
from tests.faults.places import Host, Lab
from tests.faults.processes import describe
from tests.faults.servers import Program, Server

Act = Callable[[], None]
JUMPS = (-86400 * 400, -3600, -1, 1, 61, 3600, 86400 * 400)
ENDS_S = 300.0  # the longest act: a member of etcd that has to come back
ANSWERS_S = 200.0  # calls that a server has begun wait up to a minute for a datastore


class Acts:
    """A context: it acts while the body runs. ``counts``: what it did; ``pace_s``: the mean time between two acts;
    ``held``: whether to wait with the next one; ``also``: kinds that are done only when they are asked for.
    """

    def __init__(
        self,
        lab: Lab,
        seed: int,
        only: str = "",
        *,
        pace_s: float = 0.85,
        held: Callable[[], bool] = lambda: False,
        also: Sequence[str] = (),
    ) -> None:
        self.lab, self.only, self.pace_s, self.held, self.also = lab, only, pace_s, held, also
        self.seed = f"{seed}/acts"
        self.random = random.Random(self.seed)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.doing = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Acts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(ENDS_S)
        assert not self._thread.is_alive(), f"this act does not end: {self.doing}"
        self.lab.clock.jump(0)
        self.lab.heal()
        for host in self.lab.hosts:
            if host.server is not None:
                host.server.revive()
        if self.lab.controllers is not None:
            self.lab.controllers.revive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(self.random.uniform(0.25, 1.75) * self.pace_s):
                if self.held():
                    continue
                host, self.doing, act = self.choose(sum(self.counts.values()))
                self.counts[self.doing] += 1
                act()
                if host.server is not None and self.random.random() < 0.7:  # else the next act may meet it starting
                    self._require_answers(host.server)
        except BaseException as e:
            self.failure = e

    def choose(self, number: int) -> tuple[Host, str, Act]:
        """What is done next; its decisions depend on its number, not on how long earlier acts took."""
        self.random = random.Random(f"{self.seed}/{number}")
        host = self.random.choice(self.lab.hosts)
        return host, *self.random.choice(self._acts(host))

    def _require_answers(self, server: Server) -> None:
        """A server that runs answers, whatever it has gone through; one that ended is started again."""
        try:
            until(lambda: self._ended.is_set() or server.has_ended() or server.answers(), "", ANSWERS_S, pause_s=0.05)
        except AssertionError:
            self.violations.append(
                f"after {self.doing!r} the server runs and does not answer:\n{describe(server.process.pid)}"
            )
            server.kill()
        server.revive()

    def _for(self, most_s: float) -> None:
        self._ended.wait(self.random.uniform(0.05, most_s))

    def _acts(self, host: Host) -> list[tuple[str, Act]]:
        acts: list[tuple[str, Act]] = [
            ("disk full", lambda: self._fill(host)),
            ("no inodes", lambda: self._use_up_inodes(host)),
            ("disk read-only", lambda: self._read_only(host)),
            ("clock jumped", self._jump),
        ]
        if host.server is not None:
            acts += self._server_acts(host.server)
        if self.lab.members:
            acts += self._etcd_acts(host)
        if isinstance(host.node, KubeNode):
            acts += self._kube_acts(host.node)
        return [(name, act) for name, act in acts if self.only in name]

    # -- a host -------------------------------------------------------------------------------------------------------

    def _fill(self, host: Host) -> None:
        filler = host.disk / "filler"
        try:
            with filler.open("wb") as f:
                while True:
                    f.write(bytes(1024 * 1024))
        except OSError:
            pass
        self._for(0.5)
        filler.unlink(missing_ok=True)

    def _use_up_inodes(self, host: Host) -> None:
        directory = host.disk / "inodes"
        made: list[Path] = []
        try:
            directory.mkdir()
            while True:
                made.append(directory / str(len(made)))
                made[-1].touch()
        except OSError:
            pass
        self._for(0.5)
        for path in made:
            path.unlink(missing_ok=True)
        if directory.exists():
            directory.rmdir()

    def _read_only(self, host: Host) -> None:
        """Refused while files are open for writing, as the embedded datastore's are in a server."""
        done = subprocess.run(["mount", "-o", "remount,ro", str(host.disk)], capture_output=True)
        if done.returncode:
            self.counts["disk read-only"] -= 1
            self.counts["disk read-only, refused"] += 1
        self._for(0.5)
        subprocess.run(["mount", "-o", "remount,rw", str(host.disk)], check=True)

    def _jump(self) -> None:
        """Of all servers at once; they come back only with the next jump."""
        self.lab.clock.jump(self.random.choice(JUMPS))

    # -- its server or agent ------------------------------------------------------------------------------------------

    def _server_acts(self, server: Server) -> list[tuple[str, Act]]:
        return [
            ("server killed", lambda: self._restart(server)),
            ("server killed", lambda: self._restart(server)),
            ("server ended", lambda: self._end(server)),
            ("server stopped", lambda: self._halt(server)),
            ("server short of descriptors", lambda: self._few_descriptors(server)),
            ("server short of memory", lambda: self._little_memory(server)),
            ("server started without memory", lambda: self._start_small(server)),
            ("server short of threads", lambda: self._few_threads(server)),
        ]

    def _restart(self, server: Program) -> None:
        server.kill()
        self._for(1.0)
        server.start()

    def _end(self, server: Server) -> None:
        server.stop()
        server.start()

    def _halt(self, server: Program) -> None:
        server.signal(signal.SIGSTOP)
        self._for(1.0)
        server.signal(signal.SIGCONT)

    def _few_descriptors(self, server: Server) -> None:
        server.limit("--nofile=48:16384")
        self._for(1.0)
        server.limit("--nofile=16384:16384")
        server.revive()

    def _little_memory(self, server: Server) -> None:
        """As much as it has now: whatever it asks for beyond that is refused."""
        try:
            pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0])
        except (OSError, IndexError):
            return
        server.limit(f"--as={pages * 4096}:unlimited")
        self._for(1.0)
        server.limit("--as=unlimited:unlimited")
        server.revive()

    def _start_small(self, server: Server) -> None:
        """With so little that it cannot even load its modules, or with barely enough."""
        server.kill()
        server.start(f"--as={self.random.randrange(16, 400) * 1024 * 1024}:unlimited")
        self._for(2.0)
        server.kill()
        server.start()

    def _few_threads(self, server: Server) -> None:
        """No more than it has now."""
        group = PIDS / f"cct-{os.getpid()}"
        try:
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(server.process.pid))
            now = (group / "pids.current").read_text().strip()
            (group / "pids.max").write_text(now)
            self._for(1.0)
            (group / "pids.max").write_text("max")
            (PIDS / "cgroup.procs").write_text(str(server.process.pid))
        except OSError:
            self.counts["server short of threads, refused"] += 1
        finally:
            for line in (group / "cgroup.procs").read_text().split() if group.exists() else ():
                (PIDS / "cgroup.procs").write_text(line)
            if group.exists():
                group.rmdir()
        server.revive()

    # -- etcd ---------------------------------------------------------------------------------------------------------

    def _etcd_acts(self, host: Host) -> list[tuple[str, Act]]:
        index = self.random.randrange(len(self.lab.members))
        acts: list[tuple[str, Act]] = [
            ("etcd member stopped", lambda: self._stop_member(index)),
            ("etcd member killed", lambda: self._kill_member(index)),
            ("packets between host and etcd dropped", lambda: self._drop(host, index)),
        ]
        if len(self.lab.members) > 1:
            acts.append(("etcd member cut off from the others", lambda: self._isolate(index)))
        if len(self.lab.members) > 1 and "leader" in self.also:
            acts.append(("etcd leader cut off", self._cut_leader))
        return acts

    def _stop_member(self, index: int) -> None:
        member, _ = self.lab.members[index]
        member.signal(signal.SIGSTOP)
        self._for(2.0)
        member.signal(signal.SIGCONT)

    def _kill_member(self, index: int) -> None:
        self.lab.members[index][0].stop()
        self._for(1.0)
        self.lab.start_member(index)
        if len(self.lab.members) == 1:
            self.lab.members[0][0].wait_serving()

    def _drop(self, host: Host, index: int) -> None:
        """In one direction or the other, so that requests or only their answers are lost."""
        address = self.lab.members[index][0].client_url.rpartition("//")[2].partition(":")[0]
        hook, field = self.random.choice((("input", "saddr"), ("output", "daddr")))
        chain = f"chain c {{ type filter hook {hook} priority 0; ip {field} {address} tcp sport 2379 drop; }}"
        if hook == "output":
            chain = chain.replace("sport", "dport")
        host.node.host.run("nft", f"table inet faults {{ {chain} }}", check=False)
        self._for(2.0)
        host.node.host.run("nft", "delete table inet faults", check=False)

    def _cut_leader(self) -> None:
        """From the others and from all clients, for longer than an election takes."""
        index = self.lab.leader()
        if index is None:
            self.counts["etcd leader cut off"] -= 1
            self.counts["etcd leader cut off, none found"] += 1
            return
        _, ns = self.lab.members[index]
        chains = "".join(
            f'chain {hook} {{ type filter hook {hook} priority 0; {way} != "lo" drop; }} '
            for hook, way in (("input", "iifname"), ("output", "oifname"))
        )
        ns.run("nft", f"table inet faults {{ {chains} }}", check=False)
        self._for(6.0)
        ns.run("nft", "delete table inet faults", check=False)

    def _isolate(self, index: int) -> None:
        """Clients still reach it: what it answers must not be old."""
        _, ns = self.lab.members[index]
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; tcp {port} 2380 drop; tcp {back} 2380 drop; }} "
            for hook, port, back in (("input", "dport", "sport"), ("output", "dport", "sport"))
        )
        ns.run("nft", f"table inet faults {{ {chains} }}", check=False)
        self._for(4.0)
        ns.run("nft", "delete table inet faults", check=False)

    # -- the API server -----------------------------------------------------------------------------------------------

    def _kube_acts(self, node: KubeNode) -> list[tuple[str, Act]]:
        return [
            ("API server stopped", lambda: self._stop_program("kube-apiserver")),
            ("etcd of the API server stopped", lambda: self._stop_program("etcd")),
            ("API server killed", self._kill_api_server),
            ("connections to the API server cut", lambda: self._cut(node)),
            ("connections to the API server cut", lambda: self._cut(node)),
            *self._janitor_acts(),
        ]

    def _janitor_acts(self) -> list[tuple[str, Act]]:
        janitor = self.lab.controllers
        if janitor is None:
            return []
        return [("janitor killed", lambda: self._restart(janitor)), ("janitor stopped", lambda: self._halt(janitor))]

    def _stop_program(self, name: str) -> None:
        assert self.lab.kube is not None
        self.lab.kube.processes[name].send_signal(signal.SIGSTOP)
        self._for(2.0)
        self.lab.kube.processes[name].send_signal(signal.SIGCONT)

    def _kill_api_server(self) -> None:
        assert self.lab.kube is not None
        self.lab.kube.stop("kube-apiserver")
        self._for(0.5)
        self.lab.kube.start_apiserver()

    def _cut(self, node: KubeNode) -> None:
        node.relay.close()
        self._for(1.0)
        node.relay.open()
