"""Sessions of eclipse-zenoh that declare many keys, or the same number one after another, through a
router of ours: everything still arrives, at sessions that open later too."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, Side, open_session, settling
from tests.support.reference_peer import ReferenceProcess
from tests.support.routed_sessions import Net, routed, unique
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.campaign]

PATIENCE = 120.0
CYCLES = 70_000  # More than there are key ids.
AT_ONCE = 60_000
SESSIONS = 6  # One eclipse-zenoh session takes minutes to declare tens of thousands of keys.
FOR_ONE = 11_000  # Publishers of one session.
LONG = 65_000  # Tokens on long keys: more bytes than may wait for a session that takes nothing.
LONG_KEY = 500  # Characters of a key.


@pytest.fixture
def net() -> Iterator[Net]:
    with settling(), routed() as net:
        yield net


def collect(side: Side, key: str) -> tuple[Any, set[str]]:
    """A subscriber, and the keys that it has received."""
    got: set[str] = set()

    def on_sample(sample: Any) -> None:
        got.add(str(sample.key_expr))

    return side.session.declare_subscriber(key, on_sample), got


def arrive(sender: Side, receivers: list[Side], key: str) -> None:
    """Put on a key that is not known yet, for subscribers that are not either."""
    heard = [collect(receiver, key)[1] for receiver in receivers]

    def put() -> bool:
        sender.session.put(key, b"", congestion_control=sender.api.CongestionControl.BLOCK)
        return all(heard)

    until(put, within=PATIENCE)


def test_70_000_keys_declared_and_undeclared_one_after_another(net: Net) -> None:
    sender, receivers = net.open(THEIRS), [net.open(OURS, "peer"), net.open(THEIRS)]
    prefix = unique("cycles")
    heard = [collect(receiver, f"{prefix}/**")[1] for receiver in receivers]
    sender.matching(f"{prefix}/all")
    block = sender.api.CongestionControl.BLOCK
    for number in range(CYCLES):
        key = sender.session.declare_keyexpr(f"{prefix}/{number}")
        sender.session.put(key, b"", congestion_control=block)
        sender.session.undeclare(key)
    # Theirs counts its own ids with 16 bits: the key that gets 0 is lost before it is sent.
    until(lambda: min(map(len, heard)), lambda least: least >= CYCLES - 1, PATIENCE)
    arrive(sender, [*receivers, net.open(OURS), net.open(THEIRS, "peer")], unique("after"))
    assert not net.router.stats().dropped


def declare_and_undeclare(side: Side, key: str, number: int) -> None:
    """One of the kinds of which each new key takes an id that a Rust client never gives back."""
    session = side.session
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: session.declare_subscriber(key, lambda _: None),
        lambda: session.declare_queryable(key, lambda _: None),
        lambda: session.liveliness().declare_token(key),
        lambda: session.declare_publisher(key),
        lambda: session.declare_querier(key),
    )
    kinds[number % len(kinds)]().undeclare()


def test_70_000_entities_declared_and_undeclared_one_after_another(net: Net) -> None:
    sides, prefix = [net.open(THEIRS) for _ in range(SESSIONS)], unique("entities")
    for number in range(CYCLES):
        declare_and_undeclare(sides[number % SESSIONS], f"{prefix}/{number}", number // SESSIONS)
    receivers = [net.open(OURS, "peer"), net.open(THEIRS, "peer")]
    for side in sides:
        arrive(side, receivers, unique("after"))
        arrive(receivers[0], [side], unique("back"))
    faces = net.router._core.exchange.routing.faces
    assert sum(len(face._their_scopes) for face in faces) >= CYCLES
    assert not net.router.stats().dropped


def declare_at_once(net: Net, declare: Callable[[Side, int], Any]) -> list[Any]:
    """Declare AT_ONCE entities by SESSIONS sessions; return them, to be kept."""
    sides = [net.open(THEIRS) for _ in range(SESSIONS)]
    return [
        declare(side, number) for number in range(AT_ONCE) for side in (sides[number % SESSIONS],)
    ]


def test_60_000_tokens_at_once(net: Net) -> None:
    prefix = unique("tokens")
    kept = declare_at_once(
        net, lambda side, n: side.session.liveliness().declare_token(f"{prefix}/{n}")
    )
    until(lambda: net.router.tables()["TOKENS keys"], lambda keys: keys == len(kept), PATIENCE)
    neighbours = net.neighbours()
    late = net.open(OURS, "peer")
    alive: set[str] = set()
    late.session.liveliness().declare_subscriber(
        f"{prefix}/*", lambda sample: alive.add(str(sample.key_expr)), history=True
    )
    until(lambda: len(alive), lambda found: found == AT_ONCE, PATIENCE)
    assert neighbours <= net.neighbours()
    assert not net.router.stats().dropped


def test_tokens_on_long_keys_reach_a_session_that_opens_later(net: Net) -> None:
    prefix, side, late = unique("long"), net.open(OURS), net.open(OURS)
    kept = [
        side.session.liveliness().declare_token(f"{prefix}/{n}/".ljust(LONG_KEY, "x"))
        for n in range(LONG)
    ]
    until(lambda: net.router.tables()["TOKENS keys"], lambda keys: keys == len(kept), PATIENCE)
    neighbours = net.neighbours()
    alive: set[str] = set()
    late.session.liveliness().declare_subscriber(
        f"{prefix}/**", lambda sample: alive.add(str(sample.key_expr)), history=True
    )
    until(lambda: len(alive), lambda found: found == LONG, PATIENCE)
    assert neighbours == net.neighbours()
    assert not net.router.stats().dropped


def test_60_000_subscribers_at_once(net: Net) -> None:
    prefix, got = unique("subscribers"), set[str]()

    def declare(side: Side, number: int) -> Any:
        direct = side.api.handlers.Callback(lambda s: got.add(str(s.key_expr)), indirect=False)
        return side.session.declare_subscriber(f"{prefix}/{number}", direct)

    kept = declare_at_once(net, declare)
    until(lambda: net.router.tables()["SUBSCRIBERS keys"], lambda n: n == len(kept), PATIENCE)
    for api in (OURS, THEIRS):
        got.clear()
        late = net.open(api, "peer")
        late.matching(f"{prefix}/{AT_ONCE - 1}")
        for number in range(AT_ONCE):
            late.session.put(
                f"{prefix}/{number}", b"", congestion_control=api.CongestionControl.BLOCK
            )
        until(lambda: len(got), lambda found: found == AT_ONCE, PATIENCE)
    assert not net.router.stats().dropped


def test_a_node_of_eclipse_zenoh_has_ids_left_however_many_keys_ours_declares() -> None:
    """It takes no id that the other side uses, and never returns once all are used."""
    at, prefix = f"tcp/127.0.0.1:{free_port()}", unique("left")
    with ReferenceProcess() as process:
        theirs = process.open("peer", {"listen/endpoints": [at]})
        with settling(), open_session(OURS, "peer", connect=(at,)) as ours:
            until(lambda: list(ours.info.peers_zid()), within=PATIENCE)
            kept = [
                ours.declare_subscriber(f"{prefix}/{n // 256}/{n % 256}", lambda _: None)
                for n in range(CYCLES)
            ]
            for number in range(3):
                theirs.subscribe(f"{prefix}/theirs/{number}/*")

            heard: set[str] = set()

            def put() -> int:
                for number in range(3):
                    ours.put(f"{prefix}/theirs/{number}/x", b"")
                heard.update(sample["key"] for sample in theirs.samples())
                return len(heard)

            until(put, lambda keys: keys == 3, PATIENCE)
            assert len(kept) == CYCLES
            assert not ours.stats().dropped


def test_thousands_of_publishers_of_one_session(net: Net) -> None:
    sender, prefix = net.open(THEIRS), unique("publishers")
    block = sender.api.CongestionControl.BLOCK
    with ExitStack() as stack:
        publishers = [
            stack.enter_context(
                sender.session.declare_publisher(f"{prefix}/{number}", congestion_control=block)
            )
            for number in range(FOR_ONE)
        ]
        neighbours = net.neighbours()
        late = net.open(OURS, "peer")
        _, got = collect(late, f"{prefix}/*")
        until(lambda: publishers[-1].matching_status.matching, within=PATIENCE)
        for publisher in publishers:
            publisher.put(b"")
        until(lambda: len(got), lambda found: found == FOR_ONE, PATIENCE)
        assert neighbours <= net.neighbours()
        assert not net.router.stats().dropped
