"""Which tokens are accepted, how long an answer counts, and that strangers delay nobody."""

from __future__ import annotations

import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.errors import DatastoreUnavailable
from cni_calico.relay.admission import PEER_AT_ONCE, PEER_WAITING, REVIEW_S, STANDS_IN_S, TokenReviews
from cni_calico.relay.answers import Answers
from cni_calico.relay.connections import Limits
from cni_calico.relay.fair_queue import FairQueue, select_fairly
from cni_calico.relay.tokens import TOKEN_CHARACTERS, Accepted, is_token, parse_audiences, peer_of
from cni_calico.relay.watch_reviews import AGAIN_S
from tests.deadlines import until

USER = "system:serviceaccount:kube-system:calico-node"
OWN, API = "calico-typha", "https://kubernetes.default.svc"
FRESH_S = 40.0


def token(audience: object, name: str = "t") -> str:
    """A JSON Web Token, as far as a relay reads it."""
    parts = ({"alg": "none"}, {"aud": audience, "name": name})
    head, claims = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{claims}.c2ln"


class ApiServer:
    """Answers reviews as a real one does: by the token's own audience. ``held``: reviews wait until it is set."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.is_down = self.knows_no_audiences = False
        self.held = threading.Event()
        self.held.set()

    def send(self, request: ApiRequest, deadline: Any) -> Any:
        body = request.body
        self.asked.append(body["spec"])
        self.held.wait(20)
        if self.is_down:
            raise DatastoreUnavailable("cannot review a client's token: it is down")
        given_token = body["spec"]["token"]
        audiences = body["spec"].get("audiences") or [API]
        said = parse_audiences(given_token)
        named = sorted(set(audiences) & (said or frozenset({API})))
        if self.knows_no_audiences:
            named = [] if said is not None and API not in said else [API]
        if (said is None and given_token != "opaque") or not named or given_token in self.revoked:
            return SimpleNamespace(document={"status": {"authenticated": False}})
        status = {"authenticated": True, "user": {"username": USER}, "audiences": named}
        if self.knows_no_audiences:
            del status["audiences"]
        return SimpleNamespace(document={"status": status})


class Tried:
    def __init__(self, accepted: Accepted | None = None, threads: int = 8) -> None:
        self.now = 1000.0
        self.server: Any = ApiServer()
        self.reviews = TokenReviews(
            self.server,
            accepted or Accepted(frozenset({USER})),
            lambda: None,
            clock=lambda: self.now,
            threads=threads,
        )

    def answer(self, text: str, address: str = "10.0.0.1", fresh_s: float = FRESH_S) -> str:
        found: list[str | None] = []

        def is_there() -> bool:
            found.append(self.reviews.why_not(text, address, fresh_s=fresh_s))
            return found[-1] is not None

        until(is_there, "the answer")
        return str(found[-1])

    def settled(self) -> None:
        until(lambda: not self.reviews._asking, "the reviews")


@pytest.fixture
def tried() -> Iterator[Callable[..., Tried]]:
    made: list[Tried] = []

    def make(*accepted: Any, **options: Any) -> Tried:
        made.append(Tried(*accepted, **options))
        return made[-1]

    yield make
    for each in made:
        each.server.held.set()
        each.reviews.close()


def test_each_token_is_reviewed_for_the_audience_that_it_has(tried: Callable[..., Tried]) -> None:
    both = tried()
    assert both.answer(token(OWN)) == both.answer(token([API, OWN])) == both.answer(token(API)) == ""
    assert [spec.get("audiences") for spec in both.server.asked] == [[OWN], [OWN], None]
    assert both.answer(token("another")) == "the API server does not accept this token"
    assert both.answer("opaque") == ""


def test_tokens_for_the_api_server_are_refused_once_they_are_not_wanted(tried: Callable[..., Tried]) -> None:
    own = tried(Accepted(frozenset({USER}), api_tokens=False))
    assert own.answer(token(OWN)) == ""
    assert "this relay takes tokens for calico-typha only" in own.answer(token(API))
    assert own.answer("opaque") == "the API server does not accept this token"
    assert [spec["audiences"] for spec in own.server.asked] == [[OWN], [OWN]]
    own.server.knows_no_audiences = True
    assert "does not say that this token is for calico-typha" in own.answer(token([OWN, API], "other"))


def test_without_an_audience_of_its_own_everything_is_as_before(tried: Callable[..., Tried]) -> None:
    none = tried(Accepted(frozenset({USER}), audience=""))
    assert none.answer(token(API)) == ""
    assert none.answer(token(OWN)) == "the API server does not accept this token"
    assert all("audiences" not in spec for spec in none.server.asked)


def test_a_revoked_token_is_refused_when_the_answer_is_no_longer_fresh(tried: Callable[..., Tried]) -> None:
    one, text = tried(), token(OWN)
    assert one.answer(text) == ""
    one.server.revoked.add(text)
    one.now += FRESH_S - 1
    assert (one.answer(text), len(one.server.asked)) == ("", 1)
    one.now += 1
    assert one.answer(text) == "the API server does not accept this token"
    one.server.is_down = True  # what was refused does not stand in for anything
    one.now += 60
    assert "it is down" in one.answer(text)


def test_while_the_api_server_does_not_answer_an_answer_counts_for_an_hour(tried: Callable[..., Tried]) -> None:
    one, text = tried(), token(OWN)
    assert one.answer(text) == ""
    one.server.is_down = True
    one.now += STANDS_IN_S - 10
    assert one.answer(text) == ""
    one.settled()
    asked = len(one.server.asked)
    for _ in range(5):  # without asking for each request
        assert one.reviews.why_not(text, "10.0.0.1", fresh_s=FRESH_S) == ""
    assert len(one.server.asked) == asked
    assert "it is down" in one.answer(token(OWN, "new"))
    one.now += 10
    assert "it is down" in one.answer(text)
    one.server.is_down = False
    one.now += 10
    assert one.answer(text) == ""
    one.now += FRESH_S
    one.server.revoked.add(text)
    assert one.answer(text) == "the API server does not accept this token"


def test_bogus_tokens_of_one_address_delay_nobody_else(tried: Callable[..., Tried]) -> None:
    one = tried(threads=3)
    known = token(OWN, "known")
    assert one.answer(known, "10.0.0.9") == ""
    one.now += FRESH_S
    one.server.held.clear()
    bogus = [one.reviews.why_not(token("bogus", str(i)), "10.66.6.6", fresh_s=FRESH_S) for i in range(1000)]
    assert bogus.count(None) <= PEER_WAITING + PEER_AT_ONCE
    assert set(bogus) == {None, "too many tokens are waiting to be reviewed"}
    # the third reviewer is left for others, whatever the stranger does
    until(lambda: len(one.server.asked) == 1 + PEER_AT_ONCE)
    for text, address in ((token(OWN, "new"), "10.0.0.2"), (known, "10.66.6.6")):
        assert one.reviews.why_not(text, address, fresh_s=FRESH_S) is None
    until(lambda: len(one.server.asked) == 2 + PEER_AT_ONCE)
    asked = [parse_audiences(spec["token"]) for spec in one.server.asked]
    assert asked.count(frozenset({OWN})) == 2
    one.server.held.set()
    one.settled()
    order = [spec["token"] for spec in one.server.asked]
    assert order.index(known, 1) <= 2 + PEER_AT_ONCE + 2  # those under way, not the stranger's queue
    assert one.answer(token(OWN, "new"), "10.0.0.2") == ""


def test_what_is_no_token_is_asked_of_nobody(tried: Callable[..., Tried]) -> None:
    one = tried()
    for text in ("", "a b", "x" * (TOKEN_CHARACTERS + 1), "\x7f", "caf\xe9"):
        assert one.reviews.why_not(text, "10.0.0.1", fresh_s=FRESH_S)
    assert one.server.asked == []


# -- pure parts -------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_anything_can_be_looked_at(text: str, claims: str) -> None:
    is_token(text)
    parse_audiences(text)
    body = urlsafe_b64encode(claims.encode("utf-8", "replace")).decode()
    found = parse_audiences(f"a.{body}.b")
    assert found is None or all(isinstance(each, str) for each in found)


def test_deep_claims_are_no_claims() -> None:
    body = urlsafe_b64encode(b"[" * 9000).decode()
    assert parse_audiences(f"a.{body}.b") is None


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_peer_is_an_address_or_a_network(address: str, peer: str) -> None:
    assert peer_of(address) == peer


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200), st.integers(1, 5), st.integers(1, 12))
def test_a_queue_is_bounded_and_gives_turns(steps: list[tuple[str, bool]], each: int, most: int) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(each, most)
    waiting: list[tuple[str, int]] = []
    for number, (peer, is_put) in enumerate(steps):
        if is_put:
            out = queue.put(peer, (peer, number))
            waiting.append((peer, number))
            if out is not None:
                counts = [sum(p == name for p, _ in waiting) for name in "abcd"]
                assert len(waiting) > most or sum(p == peer for p, _ in waiting) > each
                assert out[0] == peer or sum(p == out[0] for p, _ in waiting) == max(counts)
                waiting.remove(out)
        elif (found := queue.pop(lambda name: name != "d")) is not None:
            name, entry = found
            assert entry == min(one for one in waiting if one[0] == name)  # in its own order
            waiting.remove(entry)
        else:
            assert all(name == "d" for name, _ in waiting)
        assert len(queue) == len(waiting) <= most


@given(st.lists(st.tuples(st.integers(0, 5), st.integers()), unique=True), st.integers(0, 20))
def test_the_choice_is_fair(entries: list[tuple[int, int]], most: int) -> None:
    chosen = select_fairly(entries, lambda entry: str(entry[0]), most)
    assert len(chosen) == min(most, len(entries)) == len(set(chosen))
    counts = {peer: sum(one == peer for one, _ in chosen) for peer, _ in entries}
    left = {peer for peer, number in entries if (peer, number) not in chosen}
    assert all(counts[peer] >= max(counts.values()) - 1 for peer in left)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans())))
def test_refusals_crowd_out_no_token_that_was_accepted(steps: list[tuple[int, bool]]) -> None:
    answers, allowed = Answers(most_allowed=1000, most_refused=5), set()
    for now, (number, is_allowed) in enumerate(steps):
        digest = bytes([number])
        if is_allowed:
            answers.allow(digest, now, 10_000)
            allowed.add(digest)
        else:
            answers.refuse(digest, now + 10, "no")
            allowed.discard(digest)
            assert answers.refused(digest, now) == "no"
        assert {each for each in (bytes([i]) for i in range(31)) if answers.allowed_at(each) is not None} == allowed
        assert answers.sizes[1] <= 5


def test_what_is_too_old_is_forgotten() -> None:
    answers = Answers(most_allowed=3)
    for at in range(5):
        answers.allow(bytes([at]), at, 100)
    assert answers.sizes == (3, 0)
    answers.allow(b"new", 200, 100)
    assert answers.sizes == (1, 0)


def test_the_defaults_keep_what_is_promised() -> None:
    """A revoked token is refused within 60 s, and ends an open watch within 5 minutes, whatever happens in between: the
    API server remembers tokens for 10 s, and a client that does not read is given up after ``behind_s``.
    """
    limits, api_server_s = Limits(), 10.0
    assert api_server_s + limits.review_s + REVIEW_S <= 60
    assert api_server_s + limits.watch_review_s + AGAIN_S + REVIEW_S + limits.behind_s <= 300
    assert (limits.review_s, limits.watch_review_s, STANDS_IN_S) == (40, 180, 3600)
