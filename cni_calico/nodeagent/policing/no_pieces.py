"""What reads iptables' rules piece by piece: nothing can. Rule: each method says so, and the engine then reads
everything at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.nft_pieces import Atom
from cni_calico.model.netfilter import NftChain, NftRule, NftSet, TableId


class NoPieces:
    """iptables is always read as a whole: each method refuses to read a piece, and the engine then reads everything."""

    def sets(self, table: TableId, deadline: Deadline) -> Iterator[list[NftSet]]:
        raise _at_once()

    def chains(self, table: TableId, deadline: Deadline) -> Iterator[list[NftChain]]:
        raise _at_once()

    def rules(self, table: TableId, chain: str, deadline: Deadline) -> Iterator[list[NftRule]]:
        raise _at_once()

    def elements(self, table: TableId, spec: NftSet, deadline: Deadline) -> Iterator[list[Atom]]:
        raise _at_once()

    def reset(self) -> None:
        """Nothing was begun."""


def _at_once() -> KernelError:
    return KernelError("iptables' rules are read at once", errno=EOPNOTSUPP)
