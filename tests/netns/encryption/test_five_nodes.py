"""Five nodes have new keys: all at once, one after the other, and while one's agent is stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(900)]
NAMES = ("n1", "n2", "n3", "n4", "n5")


def until_shaken(pair: EncryptedPair, *names: str) -> None:
    """Each with each other one's new key."""
    keys = pair.told_keys()
    for name in names:
        for other in NAMES:
            if other != name:
                until(partial(pair.shaken, other, keys[name]), f"{other} has a session with {name}", 60, pause_s=0.2)


def lost(streams: list[Stream]) -> int:
    return sum(stream.outstanding() for stream in streams)


def test_five_nodes_have_new_keys(tmp_path: Path) -> None:
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),), CALICO_WIREGUARD_STRICT="true") as pair:
        for name in NAMES[2:]:
            pair.start(name)
        for name in NAMES[2:]:
            pair.nodes[name].until_applied()
            pair.pods[name] = pair.add_pod(name)
        pair.enable()
        pairs = [("n1", "n2"), ("n1", "n5"), ("n2", "n3"), ("n3", "n4"), ("n4", "n1")]
        # WireGuard keeps 128 packets until peers have followed: at this rate however busy the machine is
        streams = [pair.stream(of=of, port=7777 + at, pause_s=0.05) for at, of in enumerate(pairs)]
        for stream in streams:
            stream.arrive(20)
        until_shaken(pair, *NAMES)
        before, keys = lost(streams), pair.told_keys()
        for name in NAMES:
            pair.rotate(name)
        until(lambda: not set(keys.values()) & set(pair.told_keys().values()), "all have other keys", 60)
        until_shaken(pair, *NAMES)
        print(f"all at once: {lost(streams) - before} lost")

        before, keys = lost(streams), pair.told_keys()
        rotated = pair.nodes["n1"].calicoctl("encryption", "rotate", "--all", check=False)
        assert all(f"{name} has a new key" in rotated.stdout for name in NAMES), rotated
        assert not set(keys.values()) & set(pair.told_keys().values())
        assert lost(streams) == before

        pair.nodes["n5"].stop()
        live = [stream for of, stream in zip(pairs, streams, strict=True) if "n5" not in of]
        before, keys = lost(live), pair.told_keys()
        stopped = pair.nodes["n1"].calicoctl("encryption", "rotate", "--all", check=False)
        assert stopped.returncode == 1 and "n1 has a new key, which n5 did not follow" in stopped.stderr
        assert {name for name in NAMES if pair.told_keys()[name] != keys[name]} == {"n1"}
        assert lost(live) == before
        assert all(stream.readable() == 0 for stream in streams)
