"""A graph whose members nobody asks for says the same about everything else."""

from dataclasses import replace

from cni_calico.policy.graph import Graph
from tests.unit.policy.cluster import NODE, graph_of, put
from tests.unit.policy.drawn import KEYS, draw_documents


def test_without_members_everything_else_is_the_same() -> None:
    drawn, with_members = draw_documents(12), 0
    for number in range(12):
        documents = {key: drawn[key][number % len(drawn[key])] for key in KEYS}
        whole = graph_of(documents)
        bare = Graph(lambda record: record.node == NODE, lambda host: host.node == NODE, members=False)
        for key, document in documents.items():
            put(bare, key, document)
        told, less = whole.flush(), bare.flush()
        assert less.facts == replace(told.facts, last_valid=less.facts.last_valid)
        wanted = whole.wanted()
        with_members += any(map(bool, wanted.sets.values()))
        assert bare.wanted() == replace(wanted, sets=bare.wanted().sets)
        assert bare.wanted().sets.keys() == wanted.sets.keys() and not any(bare.wanted().sets.values())
        for key in KEYS:
            put(bare, key, None)
        bare.flush()
        assert not bare.wanted().sets
    assert with_members
