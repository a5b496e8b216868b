"""What was lost: joined, kept, told for the time that is asked for."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows import losses as module
from cni_calico.flows.losses import ALLOWED, AWAY, DENIED, ENDS, OVERRUN, RATE, Loss, Losses

T = 2_000_000_000.0


def flood(losses: Losses, begin: float, seconds: int) -> None:
    """Of denied packets, told twenty times a second, as ends are now and then."""
    for i in range(seconds * 20):
        now = begin + i / 20
        losses.add(Loss(now - 1, now, DENIED, RATE, 3))
        if i % 7 == 0:
            losses.add(Loss(now - 1, now, ENDS, OVERRUN, None))
        losses.flush(now)


def test_losses_are_kept_and_told_for_a_time(tmp_path: Path) -> None:
    loss, later = Loss(1.0, 2.0, ALLOWED, AWAY, None), Loss(500.0, 600.0, DENIED, RATE, 7)
    losses = Losses(str(tmp_path))
    losses.add(loss)
    losses.add(later)
    losses.flush()
    with (tmp_path / "losses").open("a") as file:
        file.write("nonsense")
    assert dict(losses.counts) == {(ALLOWED, AWAY): 1, (DENIED, RATE): 7}
    again = Losses(str(tmp_path))
    assert not again.counts, "they are this one's"
    assert again.between(None) == [loss, later] and again.between(3.0) == [later]
    assert again.between(3.0, 499.0) == [] and again.between(None, 499.0) == [loss] and again.between(600.0) == [later]
    again.add(Loss(900.0, 901.0, DENIED, RATE, 1))
    again.flush()
    assert len(Losses(str(tmp_path)).between(None)) == 3, "nothing is glued to the torn line"


def test_a_flood_is_one_loss_a_minute(tmp_path: Path) -> None:
    losses = Losses(str(tmp_path))
    flood(losses, T, 150)
    losses.flush()
    for one in (losses, Losses(str(tmp_path))):
        denied = [loss for loss in one.between(None) if loss.source == DENIED]
        assert sum(loss.count or 0 for loss in denied) == 150 * 20 * 3 and len(denied) == 3
        assert max(loss.end - loss.begin for loss in denied) <= 60 and len(one.between(None)) == 6
    assert len((tmp_path / "losses").read_text().splitlines()) < 100
    (last,) = (loss for loss in losses.between(T + 130, T + 131) if loss.source == DENIED)
    assert last.begin > T + 100


def test_what_is_far_apart_or_another_thing_stays_apart(tmp_path: Path) -> None:
    losses = Losses(str(tmp_path))
    apart = [
        Loss(T, T + 1, DENIED, RATE, 1),
        Loss(T, T + 1, DENIED, OVERRUN, 1),
        Loss(T + 10, T + 11, DENIED, RATE, 1),
        Loss(T + 11, T + 12, ALLOWED, AWAY, None),
        Loss(T + 12, T + 13, ALLOWED, AWAY, None),
    ]
    for loss in apart:
        losses.add(loss)
    assert losses.between(None) == apart


def test_the_file_has_an_end(tmp_path: Path) -> None:
    losses = Losses(str(tmp_path))
    for i in range(2 * module._KEPT + 10):
        losses.add(Loss(T + 100 * i, T + 100 * i, DENIED, RATE, 1))
        losses.flush()
    assert len(losses.between(None)) == module._KEPT
    assert len((tmp_path / "losses").read_text().splitlines()) <= module._KEPT + 10
    assert Losses(str(tmp_path)).between(None) == losses.between(None)


_PIECES = st.tuples(st.integers(0, 40), st.sampled_from((ALLOWED, DENIED)), st.sampled_from((RATE, OVERRUN)))


@given(st.lists(st.tuples(_PIECES, st.integers(1, 9)), max_size=60))
def test_no_count_is_lost_in_joining(pieces: list[tuple[tuple[int, str, str], int]]) -> None:
    losses, now = Losses("/nonexistent/never/written"), T
    for (after, source, why), count in pieces:
        now += after
        losses.add(Loss(now - 1, now, source, why, count))
    for source in (ALLOWED, DENIED):
        for why in (RATE, OVERRUN):
            told = [loss.count or 0 for loss in losses.between(None) if (loss.source, loss.why) == (source, why)]
            assert sum(told) == sum(count for (_, *which), count in pieces if which == [source, why])
