"""Sessions around a router of ours, of eclipse-zenoh and of ours, in any mode. The API is the same:
a test says what one does and what the others see. Every wait has a deadline.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import zenlake.router
from interop.api_pair import OURS, THEIRS, Seen, Side, open_session, seen
from interop.conversation import eventually
from zenlake.runtime import kernels

PATIENCE = 30.0

_numbers = count()


def unique(name: str) -> str:
    """A key that no other test has."""
    return f"routed/{name}/{next(_numbers)}"


class Net:
    """A router, and whoever was opened around it."""

    def __init__(self, router: zenlake.router.Router, stack: ExitStack) -> None:
        self.router = router
        self._stack = stack
        self._sides: dict[str, Side] = {}

    def open(
        self,
        api: Any,
        mode: str = "client",
        *,
        connect: Sequence[str] = (),
        listen: str | None = None,
        **settings: Any,
    ) -> Side:
        """A new session that knows the router."""
        session = open_session(
            api,
            mode,
            listen=listen,
            connect=(*self.router.locators, *connect),
            settings={key.replace("__", "/"): value for key, value in settings.items()},
        )
        self._stack.callback(session.close)
        self.meets(session)
        return Side(api, session)

    def meets(self, session: Any) -> None:
        """Returns as soon as the router has a session with it."""
        zid = str(session.zid())
        eventually(self.neighbours, lambda found: zid in found, PATIENCE)

    def neighbours(self) -> set[str]:
        return {str(one.zid) for one in self.router.stats().transports}

    def wanted(self, key: str, sessions: int) -> None:
        """Returns as soon as the router knows that so many want what is put on `key`."""
        exchange = self.router._core.exchange
        routing = exchange.routing

        def found() -> int:
            with exchange.lock:
                return len(routing.destinations(routing.local, key))

        eventually(found, lambda number: number == sessions, PATIENCE)

    def side(self, name: str) -> Side:
        """One for all tests, by its name in SIDES, with a number behind it for another."""
        if name not in self._sides:
            api, mode = SIDES[name.rstrip("0123456789 ")]
            self._sides[name] = self.open(api, mode)
        return self._sides[name]


SIDES = {
    "their client": (THEIRS, "client"),
    "their peer": (THEIRS, "peer"),
    "our client": (OURS, "client"),
    "our peer": (OURS, "peer"),
}


@contextmanager
def routed(**settings: Any) -> Iterator[Net]:
    """A router with nobody around it yet."""
    kernels.load()  # by a thread that no single test is to be blamed for
    config = zenlake.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    for key, value in settings.items():
        config.insert_json5(key.replace("__", "/"), value)
    with zenlake.router.run(config=config) as router, ExitStack() as stack:
        yield Net(router, stack)


class Heard:
    """What one subscriber of `side` has heard."""

    def __init__(self, side: Side, key: str, **options: Any) -> None:
        self.samples: list[Seen] = []
        self._subscriber = side.session.declare_subscriber(key, self._hear, **options)

    def _hear(self, sample: Any) -> None:
        self.samples.append(seen(sample))

    def __enter__(self) -> "Heard":
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriber.undeclare()

    def wait(self, number: int) -> list[Seen]:
        """The first `number`; more may not have come."""
        eventually(lambda: len(self.samples), lambda found: found >= number, PATIENCE)
        assert len(self.samples) == number
        return self.samples
