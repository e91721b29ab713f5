"""Two sessions that can hear each other, one of eclipse-zenoh and one of ours, or what is between
them is. Both have the same API: a test says what one does and what the other sees, and is run for
every way between two. Every wait has a deadline.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, NamedTuple

import zenoh

import zenlake
from tests.golden.proxy import free_port
from tests.support.leaks import alive
from tests.support.waiting import until
from zenlake.runtime import kernel_loader

OURS: Any = zenlake
THEIRS: Any = zenoh
"They have the same names; that their types are others is the point."

PATIENCE = 20.0  # Seconds, on a busy machine.
REPEAT_SECONDS = 1.0  # Pause before a message that may have been dropped is sent again.
QUERY_SECONDS = 30.0
OPENS = 3  # Attempts: another process may take the port that was free.

_numbers = count()


def unique(name: str) -> str:
    """A key that no other test has."""
    return f"api/{name}/{next(_numbers)}"


@contextmanager
def settling() -> Iterator[None]:
    """Threads of callbacks end, and sockets of closed sessions go, a moment after the call that
    ends them has returned: wait for that."""
    before = alive()
    yield
    until(lambda: alive() - before, lambda left: not left, PATIENCE)


class Side(NamedTuple):
    """A session and the module it comes from."""

    api: Any
    session: Any

    def matching(self, key: str, within: float = PATIENCE) -> None:
        """Returns as soon as it knows of a subscriber to `key`."""
        with self.session.declare_publisher(key) as publisher:
            until(lambda: publisher.matching_status.matching, bool, within)

    def answered(self, key: str, within: float = PATIENCE) -> None:
        """Returns as soon as it knows of a queryable for `key`."""
        with self.session.declare_querier(key, target=self.api.QueryTarget.ALL) as querier:
            until(lambda: querier.matching_status.matching, bool, within)


class Way(NamedTuple):
    """From whom to whom. `routers`: how many stand between them."""

    sender: Side
    receiver: Side
    routers: int


def open_session(
    api: Any,
    mode: str,
    *,
    listen: str | None = None,
    connect: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
) -> Any:
    """Open a session of `api` that meets only the nodes it is told to."""
    config = api.Config()
    values = {
        "mode": mode,
        "listen/endpoints": [listen] if listen else [],
        "connect/endpoints": list(connect),
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": False,
        **(settings or {}),
    }
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return api.open(config)


class Nets:
    """Whatever has been opened stays until the end: tests share it, and have their own keys."""

    def __init__(self) -> None:
        kernel_loader.load()  # by a thread that no single test is to be blamed for
        self._stack = ExitStack()
        self._open: dict[str, tuple[Side, Side, int]] = {}

    def close(self) -> None:
        self._stack.close()

    def way(self, name: str) -> Way:
        """By the name of the net and who sends, as in WAYS."""
        net, _, direction = name.partition(": ")
        if net not in self._open:
            self._open[net] = NETS[net](self)
        first, other, routers = self._open[net]
        return Way(first, other, routers) if direction == THERE else Way(other, first, routers)

    def side(self, api: Any, mode: str, **arguments: Any) -> Side:
        session = open_session(api, mode, **arguments)
        self._stack.callback(session.close)
        return Side(api, session)

    def listener(self, api: Any, mode: str) -> tuple[Side, str]:
        for attempt in range(OPENS):
            at = f"tcp/127.0.0.1:{free_port()}"
            try:
                return self.side(api, mode, listen=at), at
            except (zenoh.ZError, zenlake.ZError):
                if attempt == OPENS - 1:
                    raise
        raise AssertionError


THERE, BACK = "there", "back"

Net = Callable[[Nets], tuple[Side, Side, int]]


def direct(dials: Any, mode: str, listens: Any) -> Net:
    """Return a net in which a session of `mode` connects to a peer."""

    def opened(nets: Nets) -> tuple[Side, Side, int]:
        listener, at = nets.listener(listens, "peer")
        return nets.side(dials, mode, connect=(at,)), listener, 0

    return opened


def routed(first: Any, router: Any, other: Any, mode: str = "client") -> Net:
    """Two that know only a router."""

    def opened(nets: Nets) -> tuple[Side, Side, int]:
        _, at = nets.listener(router, "router")
        return nets.side(first, mode, connect=(at,)), nets.side(other, mode, connect=(at,)), 1

    return opened


NETS: dict[str, Net] = {
    "their peer, their peer": direct(THEIRS, "peer", THEIRS),
    "their clients of their router": routed(THEIRS, THEIRS, THEIRS),
    "our peer, their peer": direct(OURS, "peer", THEIRS),
    "their peer, our peer": direct(THEIRS, "peer", OURS),
    "our client, their peer": direct(OURS, "client", THEIRS),
    "their client, our peer": direct(THEIRS, "client", OURS),
    "clients of their router": routed(OURS, THEIRS, THEIRS),
    "peers of our router": routed(OURS, OURS, THEIRS, "peer"),
    "their clients of our router": routed(THEIRS, OURS, THEIRS),
    "both clients of our router": routed(OURS, OURS, THEIRS),
}
SYMMETRIC = {
    "their peer, their peer",
    "their clients of their router",
    "their clients of our router",
}
"Two of these have nothing of ours: they show that a test asks for what the reference does."

WAYS = tuple(f"{net}: {THERE}" for net in NETS) + tuple(
    f"{net}: {BACK}" for net in NETS if net not in SYMMETRIC
)
OUR_WAYS = tuple(
    name for name in WAYS if not name.startswith(("their peer, their", "their clients of their"))
)
SOME_WAYS = tuple(
    f"{net}: {direction}"
    for net in ("our peer, their peer", "clients of their router", "both clients of our router")
    for direction in (THERE, BACK)
)
"Where the way makes no difference to what is tested."


class Seen(NamedTuple):
    """A sample in plain values, equal for both implementations."""

    key: str
    kind: str
    payload: bytes
    encoding: str
    priority: str
    congestion_control: str
    express: bool
    attachment: bytes | None
    timestamp: str | None
    source: tuple[str, int, int] | None
    stack: tuple[tuple[str, bool], ...] | None


def seen(sample: Any) -> Seen:
    source, stack = sample.source_info, sample.timestamp_stack
    return Seen(
        str(sample.key_expr),
        str(sample.kind),
        bytes(sample.payload),
        str(sample.encoding),
        str(sample.priority),
        str(sample.congestion_control),
        sample.express,
        None if sample.attachment is None else bytes(sample.attachment),
        None if sample.timestamp is None else str(sample.timestamp),
        source and (str(source.source_id.zid), source.source_id.eid, source.source_sn),
        points(stack),
    )


def points(stack: Any) -> tuple[tuple[str, bool], ...] | None:
    """Where the records of a timestamp stack were made, and whether by a callback."""
    if stack is None:
        return None
    return tuple((str(record.point), record.is_custom) for record in stack.records)


class Ear:
    """Samples that a subscriber has heard."""

    def __init__(self) -> None:
        self.heard: list[Seen] = []

    def hear(self, sample: Any) -> None:
        self.heard.append(seen(sample))

    def wait(self, number: int) -> list[Seen]:
        """The first `number`; more may not have come."""
        until(lambda: len(self.heard), lambda found: found >= number, PATIENCE)
        assert len(self.heard) == number
        return self.heard


@contextmanager
def hearing(way: Way, key: str, probe: str | None = None) -> Iterator[Ear]:
    """A subscriber to `key`, of which the sender knows; `probe` is a key where it is heard."""
    ear = Ear()
    with way.receiver.session.declare_subscriber(key, ear.hear):
        way.sender.matching(probe or key)
        yield ear


@contextmanager
def answering(way: Way, key: str, answer: Callable[[Any], object], **options: Any) -> Iterator[Any]:
    """A queryable on `key` that answers each query by `answer`, of which the sender knows."""

    def on_query(query: Any) -> None:
        with query:
            answer(query)

    with way.receiver.session.declare_queryable(key, on_query, **options) as queryable:
        way.sender.answered(key)
        yield queryable


def instrumentation(api: Any, *which: str) -> Any:
    """Asks for records at the points named: send, route, receive."""
    builder = api.TimestampInstrumentationBuilder()
    for name in which:
        builder = getattr(builder, f"set_{name}")(True)
    return builder.build()


def passage(way: Way, which: tuple[str, ...] = ("send", "route", "receive")) -> list[Any]:
    """The records of a message from one end to the other: every node routes it once."""
    made = {"send": 1, "route": 2 + way.routers, "receive": 1}
    return [
        (f"InterceptionPoint.{name.upper()}", False) for name in which for _ in range(made[name])
    ]


def replies(answers: Any) -> list[Any]:
    """Return the replies to a get: a sample as Seen, an error as its text with "err " before it."""
    found: list[Any] = []
    for reply in answers:
        ok, err = reply.ok, reply.err
        found.append(seen(ok) if ok is not None else f"err {err.payload.to_string()}")
    return found
