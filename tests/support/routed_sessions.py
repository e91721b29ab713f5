"""Sessions around a router of ours, of eclipse-zenoh and of ours, in any mode. The API is the same:
a test says what one does and what the others see. Every wait has a deadline.
"""

import secrets
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import zenlake.router
from tests.support.interop_pair import OURS, THEIRS, Seen, Side, open_session, seen
from tests.support.processes import module_command, python_environment
from tests.support.waiting import until
from zenlake.runtime import kernel_loader
from zenlake.runtime.message_handler import MessageHandler
from zenlake.runtime.node import Node, NodeConfig
from zenlake.runtime.transport_session import TransportSession
from zenlake.transport.offer import Offer
from zenlake.wire.enums import WirePriority, WireWhatAmI
from zenlake.wire.network import NetworkMessage
from zenlake.wire.zenohid import WireZenohId

PATIENCE = 30.0
START_SECONDS = 120.0  # Longest wait for a process to say a line, on a busy machine.

_numbers = count()


def unique(name: str) -> str:
    """A key that no other test has."""
    return f"routed/{name}/{next(_numbers)}"


class Net:
    """A router, and the sessions that were opened around it."""

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
        until(self.neighbours, lambda found: zid in found, PATIENCE)

    def neighbours(self) -> set[str]:
        return {str(transport.zid) for transport in self.router.stats().transports}

    def settled(self, before: dict[str, int]) -> None:
        """Returns as soon as the router's tables are as they were."""
        until(self.router.tables, lambda found: found == before, PATIENCE)

    @contextmanager
    def holding(self, key: str) -> Iterator["Holding"]:
        """A process with a queryable and a token on `key`, once the router knows of both."""
        before = self.router.tables()["declared"]
        (endpoint,) = self.router.locators
        with Holding(endpoint, key) as holding:
            until(self.router.tables, lambda now: now["declared"] >= before + 2, PATIENCE)
            yield holding

    def wanted(self, key: str, sessions: int) -> None:
        """Returns as soon as the router knows that so many want what is put on `key`."""
        exchange = self.router._core.exchange
        routing = exchange.routing

        def found() -> int:
            with exchange.lock:
                return len(routing.destinations(routing.local, key))

        until(found, lambda number: number == sessions, PATIENCE)

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
def routed(connect: Sequence[str] = (), **settings: str) -> Iterator[Net]:
    """A router without sessions yet."""
    kernel_loader.load()  # by a thread that no single test is to be blamed for
    config = zenlake.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", "false")
    for key, value in settings.items():
        config.insert_json5(key.replace("__", "/"), value)
    with zenlake.router.run(connect=connect, config=config) as router, ExitStack() as stack:
        yield Net(router, stack)


class Heard:
    """Samples that one subscriber of `side` has heard."""

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
        until(lambda: len(self.samples), lambda found: found >= number, PATIENCE)
        assert len(self.samples) == number
        return self.samples


class Wire:
    """A client that sends messages as they are, and keeps the messages that it receives."""

    def __init__(self, endpoint: str) -> None:
        self.messages: list[NetworkMessage] = []
        self.zid = WireZenohId(secrets.token_bytes(16))
        self._endpoint = endpoint
        config = NodeConfig(offer=Offer(zid=self.zid, whatami=WireWhatAmI.CLIENT))
        self._node = Node(config, MessageHandler(self._keep))

    def _keep(
        self,
        session: TransportSession,
        message: NetworkMessage,
        priority: WirePriority,
        reliable: bool,
    ) -> None:
        self.messages.append(message)

    def __enter__(self) -> "Wire":
        self._node.start()
        self.session = self._node.connect(self._endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._node.close()

    def of(self, kind: type) -> list[Any]:
        return [message for message in list(self.messages) if type(message) is kind]

    def wait(self, kind: type, number: int = 1) -> list[Any]:
        """So many of a kind, and no more."""
        found = until(lambda: self.of(kind), lambda found: len(found) >= number, PATIENCE)
        assert len(found) == number
        return found


class Holding:
    """The process of reference_watcher.py."""

    def __init__(self, endpoint: str, key: str) -> None:
        self._process = subprocess.Popen(
            module_command("tests.support.reference_watcher", endpoint, key),
            env=python_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.says("ready")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> "Holding":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def says(self, line: str) -> None:
        output = self._process.stdout
        assert output is not None
        assert select.select([output], [], [], START_SECONDS)[0], f"it does not say {line!r}"
        assert output.readline().strip() == line

    def kill(self) -> None:
        """Not a word more is said to anybody."""
        self._process.kill()
        self._process.communicate()
