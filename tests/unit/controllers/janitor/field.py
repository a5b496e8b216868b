"""A janitor of a small cluster, with an election that the test decides."""

import threading

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import JanitorOptions
from cni_calico.controllers.janitor.run import Janitor
from cni_calico.datastore.election import FencedStore, SoleElection, Terms
from tests.deadlines import soon
from tests.fakes.notes import Notes
from tests.unit.ipam.world import World, request

QUICK = JanitorOptions(
    Terms(lasts_s=60, renew_s=0.05, look_s=0.05), 0.0, 1000.0, look_s=0.05, settings_s=0.05, again_s=0.2, calls_s=0.0
)


class Election(SoleElection):
    """Decided by the test."""

    def __init__(self, ours=True):
        self.ours, self.asked, self.resigned, self.error = ours, 0, 0, None

    def campaign(self, deadline):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.ours

    def remaining_s(self):
        return 60.0 if self.ours else 0.0

    def resign(self, deadline):
        self.resigned += 1

    def fenced(self, store):
        return FencedStore(store, self)


class Field:
    def __init__(self, options=QUICK, ours=True):
        self.world, self.log, self.counters, self.election = World(), Notes(), JanitorCounters(), Election(ours)
        self.world.pool("four", "10.65.0.0/26", 28)
        self.world.node("n1")
        cluster = Cluster(self.world.store, self.log)
        self.stopping = threading.Event()
        self.janitor = Janitor(cluster, self.election, self.counters, options)
        self.thread = threading.Thread(target=self.janitor.run, args=(self.stopping,))

    def leave_tunnel(self):
        wanted = request("ipip-tunnel-addr-gone", "gone", use="Tunnel")
        attributes = {"node": "gone", "type": "ipipTunnelAddress"}
        fields = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
        self.world.allocator().assign(type(wanted)(**{**fields, "attributes": attributes}), soon())

    def stop(self):
        self.stopping.set()
        self.thread.join(10)
        assert not self.thread.is_alive()
