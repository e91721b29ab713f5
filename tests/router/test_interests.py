"""Answers of a router of ours to interests, matching and tokens; it forgets what is gone."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.interop_pair import OURS, Side
from tests.support.routed_sessions import PATIENCE, SIDES, Net, routed, unique
from tests.support.waiting import until

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    with routed() as net:
        for name in SIDES:
            net.side(name)
            net.side(name + " 2")
        yield net


@pytest.fixture(params=SIDES)
def side(request: pytest.FixtureRequest, net: Net) -> Side:
    return net.side(request.param)


@pytest.fixture(params=SIDES)
def other(request: pytest.FixtureRequest, net: Net) -> Side:
    return net.side(request.param + " 2")


class Changes:
    """Of a matching status."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def __call__(self, status: Any) -> None:
        self.seen.append(bool(status.matching))

    def wait(self, *changes: bool) -> None:
        until(lambda: self.seen, lambda seen: len(seen) >= len(changes), PATIENCE)
        assert self.seen == list(changes)


def test_publishers_know_whether_somebody_hears(net: Net, side: Side, other: Side) -> None:
    key = unique("matching")
    before = net.router.tables()
    changes = Changes()
    with side.session.declare_publisher(f"{key}/a") as publisher:
        publisher.declare_matching_listener(changes)
        assert not publisher.matching_status.matching
        with other.session.declare_subscriber(f"{key}/*", print):
            changes.wait(True)
            with other.session.declare_subscriber(f"{key}/a", print):
                assert publisher.matching_status.matching
        changes.wait(True, False)
        assert not publisher.matching_status.matching
    net.settled(before)


def test_queriers_know_whether_somebody_answers(net: Net, side: Side, other: Side) -> None:
    key = unique("matching")
    before = net.router.tables()
    changes = Changes()
    complete = side.api.QueryTarget.ALL_COMPLETE
    with side.session.declare_querier(f"{key}/a", target=complete) as querier:
        querier.declare_matching_listener(changes)
        with other.session.declare_queryable(f"{key}/a", print):
            with other.session.declare_queryable(f"{key}/*", print, complete=True):
                changes.wait(True)
            changes.wait(True, False)
        assert not querier.matching_status.matching
    net.settled(before)


class Tokens:
    """Tokens that a liveliness subscriber was told of."""

    def __init__(self, side: Side, key: str, **options: Any) -> None:
        self.seen: list[tuple[str, str]] = []
        liveliness = side.session.liveliness()
        self._subscriber = liveliness.declare_subscriber(key, self._hear, **options)

    def _hear(self, sample: Any) -> None:
        self.seen.append((str(sample.kind).rpartition(".")[2], str(sample.key_expr)))

    def __enter__(self) -> "Tokens":
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriber.undeclare()

    def wait(self, *changes: tuple[str, str]) -> None:
        until(lambda: self.seen, lambda seen: len(seen) >= len(changes), PATIENCE)
        assert self.seen == list(changes)


def alive(side: Side, key: str) -> list[str]:
    found = side.session.liveliness().get(key, timeout=PATIENCE)
    return sorted(str(reply.ok.key_expr) for reply in found)


def test_tokens_with_and_without_history(net: Net, side: Side, other: Side) -> None:
    key = unique("token")
    first, second = f"{key}/1", f"{key}/2"
    before = net.router.tables()
    liveliness = other.session.liveliness()
    with liveliness.declare_token(first):
        until(lambda: alive(side, f"{key}/*"), lambda found: found == [first], PATIENCE)
        with Tokens(side, f"{key}/*", history=True) as with_, Tokens(side, f"{key}/*") as without:
            with_.wait(("PUT", first))
            asked = net.router.tables()["interests"]
            assert asked
            with liveliness.declare_token(second):
                with_.wait(("PUT", first), ("PUT", second))
                without.wait(("PUT", second))
                if side.api is OURS:  # one of theirs mixes up what it watches and what it asked
                    assert alive(side, f"{key}/*") == [first, second]
            with_.wait(("PUT", first), ("PUT", second), ("DELETE", second))
            without.wait(("PUT", second), ("DELETE", second))
    net.settled(before)
    until(lambda: alive(side, f"{key}/*"), lambda found: found == [], PATIENCE)


def test_a_token_of_two_dies_with_the_last(net: Net, side: Side) -> None:
    key = unique("token")
    one, two = (net.side(name + " 2").session.liveliness() for name in ("their client", "our peer"))
    before = net.router.tables()
    with Tokens(side, key) as tokens:
        until(net.router.tables, lambda now: now["interests"] > before["interests"], PATIENCE)
        first = one.declare_token(key)
        tokens.wait(("PUT", key))
        second = two.declare_token(key)
        until(net.router.tables, lambda now: now["declared"] == before["declared"] + 2, PATIENCE)
        first.undeclare()
        until(net.router.tables, lambda now: now["declared"] == before["declared"] + 1, PATIENCE)
        if side.api is OURS:
            assert alive(side, key) == [key]
        second.undeclare()
        tokens.wait(("PUT", key), ("DELETE", key))
    net.settled(before)


def test_what_dies_with_its_process(net: Net, side: Side) -> None:
    """Killed, not closed: no CLOSE is sent, and the tables are as before."""
    key = unique("killed")
    before = net.router.tables()
    changes = Changes()
    with (
        Tokens(side, key, history=True) as tokens,
        side.session.declare_querier(key) as querier,
    ):
        querier.declare_matching_listener(changes)
        with net.holding(key) as holding:
            tokens.wait(("PUT", key))
            changes.wait(True)
            holding.kill()
            tokens.wait(("PUT", key), ("DELETE", key))
            changes.wait(True, False)
    net.settled(before)


def test_the_tables_when_everybody_has_gone() -> None:
    """Sessions of all kinds declare all there is, and close without undeclaring it."""
    with routed() as net:
        empty = net.router.tables()
        key = unique("gone")
        sides = [net.open(*SIDES[name]) for name in SIDES]
        kept: list[Any] = []
        for api, session in sides:
            kept += [
                session.declare_subscriber(f"{key}/**", print),
                session.declare_queryable(f"{key}/*", print, complete=True),
                session.liveliness().declare_token(f"{key}/{api.__name__}"),
                session.liveliness().declare_subscriber(f"{key}/*", print, history=True),
                session.declare_publisher(f"{key}/a"),
                session.declare_querier(f"{key}/a"),
            ]
        until(net.router.tables, lambda now: now["declared"] >= 12, PATIENCE)
        for _, session in sides:
            session.put(f"{key}/a", b"")
        for _, session in sides:
            session.close()
        net.settled(empty)
