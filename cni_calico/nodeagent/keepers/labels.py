"""Labels the node's block affinities that an older version wrote, when the agent starts.

Rule: this is done at every start, and no file is trusted to say that it was done, because that version may have run on
this node since the last start. Start-up does the same; this is for an agent that is run without it (``calico-node
-felix``).
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.daemon.keeper import Keeper
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.startup.records import label_affinities

LOOK_S = 3600.0  # for the keeper's thread: once labelled, nothing is asked any more


@dataclass(slots=True)
class AffinityLabels:
    context: Context
    node: str
    done: bool = False

    def look(self) -> None:
        """Label them, once. Raises DatastoreError, DeadlineExceeded, TryAgain."""
        if self.done:
            return
        for what in label_affinities(self.context, self.node):
            self.context.log.info(f"wrote {what}")
        self.done = True


def label_keeper(context: Context, node: str) -> Keeper:
    look = AffinityLabels(context, node).look
    return Keeper("labels of block affinities", look, LOOK_S, context.log, context.troubles)
