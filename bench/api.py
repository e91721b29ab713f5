"""The session API beside eclipse-zenoh's, in one run and in turns.

The measured session listens in a process of its own. The processes that send to it and receive from
it are zenlake clients below the API (`api_peer.py`): equal for both libraries, and no bottleneck.
`python -m bench.api [--profile] [NAME ...]` measures some figures alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from statistics import median, quantiles
from typing import Any

import zenlake
from bench.figures import Figure, Figures, medians, run_in_turns
from bench.peer import PROFILE, session_config
from bench.process import PATIENCE, Process, process
from zenlake.api.pubsub.outbound_route import OutboundRoute
from zenlake.routing import Routing
from zenlake.wire.declare import Declare, DeclareSubscriber
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.qos import DEFAULT
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

SIZES = (8, 64, 1024, 65_536)
SECONDS = 0.5
STALL, SHORT_STALL = 5.0, 0.3  # Seconds without a new message after which none is expected.
PINGS = 1000
RECEIVERS = 10
SUBSCRIPTIONS = (1, 1_000, 100_000)
FINDS = 2_000
IDLE_SESSIONS = 20
OURS, THEIRS = "zenlake", "eclipse-zenoh"
LIBRARIES = {OURS: "zenlake", THEIRS: "zenoh"}
BLOCK, DROP = "BLOCK", "DROP"

AIMS = {
    "put": 2,
    "callback": 3,
    "arrow": 15,
    "put_batch": 20,
    "get": 1.5,
    "router": 1,
}
ROUND_TRIP_AIM = 0.5
ROUTE_AIM = 2  # As fast among 100,000 subscriptions as with one, except for noise.


def figures() -> Figures:
    for measure in GROUPS.values():
        yield from measure()


# ---- the limits of the benchmark


def ceiling() -> Figures:
    """Measure the feed against the sink: a figure near this one shows the benchmark's own limit."""
    with (
        process("open_sink") as sink,
        process("feed", endpoint=sink.facts["endpoint"]) as feed,
    ):
        for size in SIZES:
            rate = medians({"feed": partial(feed_rate, feed, sink, size)})["feed"]
            yield Figure(f"ceiling of this benchmark, {size} B", rate, "messages/s")


# ---- out


class Publishing:
    """A measured session, and a sink that receives its puts."""

    def __init__(self, measured: Process, sink: Process) -> None:
        self.measured = measured
        self.sink = sink
        self.shares: list[float] = []

    def rate(self, do: str, **arguments: Any) -> float:
        """Return calls or rows per second; unless messages may be dropped, all have arrived."""
        before = self.sink.count
        found = self.measured.ask(do, seconds=SECONDS, **arguments)
        sent = found["sent"]
        if arguments.get("congestion_control") == DROP:
            arrived = self.sink.ask("arrived", expected=before + sent, stall=SHORT_STALL)
            self.shares.append((arrived["count"] - before) / sent)
        else:
            wait_for_all(self.sink, before + sent)
        return float(found["rate"])


def wait_for_all(receiver: Process, expected: int) -> float:
    """Wait until `receiver` has `expected` messages, and return the time."""
    found = receiver.ask("arrived", expected=expected, stall=STALL)
    if found["count"] != expected:
        raise RuntimeError(f"{receiver.name}: {found['count']} of {expected} arrived")
    return float(found["time"])


@contextmanager
def publishing(library: str) -> Iterator[Publishing]:
    with (
        process("session", library=library) as measured,
        process("sink", endpoint=measured.facts["endpoint"]) as sink,
    ):
        yield Publishing(measured, sink)


def puts() -> Figures:
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(publishing(library)) for name, library in LIBRARIES.items()
        }
        for size in SIZES:
            yield from put_figures(sides, size)


def put_figures(sides: dict[str, Publishing], size: int) -> Figures:
    def put(side: Publishing, control: str) -> Callable[[], float]:
        return partial(side.rate, "put", size=size, congestion_control=control)

    rates = medians(
        {
            **{name: put(side, BLOCK) for name, side in sides.items()},
            "put_batch": partial(sides[OURS].rate, "put_batch", size=size),
        }
    )
    batches = rates.pop("put_batch")
    yield from compare(f"put, {size} B, {BLOCK}", rates, "calls/s", AIMS["put"])
    for side in sides.values():
        side.shares.clear()
    dropping = medians({name: put(side, DROP) for name, side in sides.items()})
    yield from compare(f"put, {size} B, {DROP}", dropping, "calls/s", AIMS["put"])
    for name, side in sides.items():
        yield Figure(f"put, {size} B, {DROP}, {name}, arrived", median(side.shares) * 100, "%")
    yield Figure(f"put_batch, {size} B, {OURS}", batches, "rows/s")
    name = f"put_batch, {size} B, beside {THEIRS}'s put"
    yield Figure(name, batches / rates[THEIRS], "x", AIMS["put_batch"])


def compare(what: str, rates: dict[str, float], unit: str, at_least: float | None) -> Figures:
    for name, rate in rates.items():
        yield Figure(f"{what}, {name}", rate, unit)
    yield Figure(f"{what}, beside {THEIRS}", rates[OURS] / rates[THEIRS], "x", at_least)


# ---- in


class Receiving:
    """A measured session, and the process that feeds it."""

    def __init__(self, measured: Process, feed: Process) -> None:
        self.measured = measured
        self.feed = feed

    def rate(self, into: str, size: int) -> float:
        self.measured.ask("receive", into=into)
        return feed_rate(self.feed, self.measured, size)


def feed_rate(feed: Process, receiver: Process, size: int, copies: int = 1) -> float:
    """Return messages per second, from the first one sent to the last one received."""
    before = receiver.count
    sent = feed.ask("feed", size=size, seconds=SECONDS)
    count = sent["sent"] * copies
    return float(count / (wait_for_all(receiver, before + count) - sent["time"]))


@contextmanager
def receiving(library: str) -> Iterator[Receiving]:
    with (
        process("session", library=library) as measured,
        process("feed", endpoint=measured.facts["endpoint"]) as feed,
    ):
        yield Receiving(measured, feed)


def samples() -> Figures:
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(receiving(library)) for name, library in LIBRARIES.items()
        }
        for size in SIZES:
            jobs: dict[str, Callable[[], float]] = {
                name: partial(side.rate, "callback", size) for name, side in sides.items()
            }
            jobs["arrow"] = partial(sides[OURS].rate, "arrow", size)
            rates = medians(jobs)
            arrow = rates.pop("arrow")
            yield from compare(f"callback, {size} B", rates, "samples/s", AIMS["callback"])
            yield Figure(f"Arrow batches, {size} B, {OURS}", arrow, "samples/s")
            name = f"Arrow batches, {size} B, beside {THEIRS}'s callback"
            yield Figure(name, arrow / rates[THEIRS], "x", AIMS["arrow"])
        reading = medians({name: partial(side.rate, "reading", 64) for name, side in sides.items()})
        yield from compare("callback that reads key and payload, 64 B", reading, "samples/s", None)


# ---- there and back


@contextmanager
def pair(library: str) -> Iterator[tuple[Process, Process]]:
    """Open two sessions: one that answers, and the measured one."""
    with (
        process("session", library=library) as far,
        process("session", library=library, connect=far.facts["endpoint"]) as near,
    ):
        yield far, near


def round_trips() -> Figures:
    with ExitStack() as stack:
        near: dict[str, Process] = {}
        for name, library in LIBRARIES.items():
            far, near[name] = stack.enter_context(pair(library))
            far.ask("pong")
        for indirect in (True, False):
            results = run_in_turns(
                {name: partial(ping_seconds, measured, indirect) for name, measured in near.items()}
            )
            taken = {name: [*chain.from_iterable(turns)] for name, turns in results.items()}
            kind = "" if indirect else ", indirect=False"
            for words, statistic in STATISTICS.items():
                what = f"round trip of 64 B{kind}, {words}"
                found = {name: statistic(values) * 1e6 for name, values in taken.items()}
                for name, value in found.items():
                    yield Figure(f"{what}, {name}", value, "us")
                ratio = found[OURS] / found[THEIRS]
                yield Figure(f"{what}, beside {THEIRS}", ratio, "x", None, ROUND_TRIP_AIM)


def ping_seconds(measured: Process, indirect: bool) -> list[float]:
    seconds: list[float] = measured.ask("ping", rounds=PINGS, indirect=indirect)["seconds"]
    return seconds


def percentile_99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1]


STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "median": median,
    "99 %": percentile_99,
}


def queries() -> Figures:
    with ExitStack() as stack:
        near: dict[str, Process] = {}
        for name, library in LIBRARIES.items():
            far, near[name] = stack.enter_context(pair(library))
            far.ask("answer")

        def rate(measured: Process) -> float:
            return float(measured.ask("get", seconds=SECONDS)["rate"])

        rates = medians({name: partial(rate, measured) for name, measured in near.items()})
        yield from compare("get with one reply", rates, "queries/s", AIMS["get"])


# ---- through a router


@contextmanager
def forwarding(library: str, receivers: int) -> Iterator[Callable[[int], float]]:
    """Open a router of `library`; yield a measure of the messages per second that leave it."""
    with (
        process("session", library=library, mode="router") as router,
        process("sink", endpoint=router.facts["endpoint"], sessions=receivers) as sink,
        process("feed", endpoint=router.facts["endpoint"]) as feed,
    ):
        wait_for_receivers(feed, sink, receivers)
        yield partial(feed_rate, feed, sink, copies=receivers)


def wait_for_receivers(feed: Process, sink: Process, receivers: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        before = sink.count
        feed.ask("feed", size=8, rows=1)
        expected = before + receivers
        if sink.ask("arrived", expected=expected, stall=SHORT_STALL)["count"] >= expected:
            return
    raise RuntimeError("the router does not forward to all")


def router() -> Figures:
    for receivers in (1, RECEIVERS):
        with ExitStack() as stack:
            sides = {
                name: stack.enter_context(forwarding(library, receivers))
                for name, library in LIBRARIES.items()
            }
            for size in SIZES:
                rates = medians({name: partial(rate, size) for name, rate in sides.items()})
                what = f"router, 1 to {receivers}, {size} B"
                yield from compare(what, rates, "messages/s", AIMS["router"])


# ---- routes


def routes() -> Figures:
    """Measure the time to find the route of a put among subscriptions that do not match."""
    config = session_config(zenlake, "router")
    taken: dict[str, dict[int, float]] = {"Routing.destinations": {}, "OutboundRoute.refresh": {}}
    for count in SUBSCRIPTIONS:
        with zenlake.open(config) as session:
            core = session._core
            routing = core.exchange.routing
            with core.exchange.lock:
                declare(routing, count)
            key = zenlake.KeyExpr("bench/flow/put")
            jobs: dict[str, Callable[[], object]] = {
                "Routing.destinations": partial(routing.destinations, routing.local, key),
                "OutboundRoute.refresh": OutboundRoute(core, key, DEFAULT).refresh,
            }
            for name, job in jobs.items():
                taken[name][count] = medians({name: partial(microseconds, job)})[name]
    for name, by_count in taken.items():
        for count, found in by_count.items():
            yield Figure(f"{name} among {count}", found, "us")
        ratio = by_count[SUBSCRIPTIONS[-1]] / by_count[SUBSCRIPTIONS[0]]
        what = f"{name}, {SUBSCRIPTIONS[-1]} beside {SUBSCRIPTIONS[0]}"
        yield Figure(what, ratio, "x", None, ROUTE_AIM)


def declare(routing: Routing, count: int) -> None:
    """Declare `count` subscriptions of one client, every tenth with a wildcard."""
    face, _ = routing.open(WireZenohId.parse("c1"), WireWhatAmI.CLIENT, 0.0)
    for number in range(1, count + 1):
        key = f"bench/other/{number}" + ("" if number % 10 else "/**")
        routing.on_message(face, Declare(DeclareSubscriber(number, WireExpr(0, key))), 0.0)
    assert not routing.counters, f"refused: {routing.counters}"


def microseconds(job: Callable[[], object]) -> float:
    before = time.perf_counter()
    for _ in range(FINDS):
        job()
    return (time.perf_counter() - before) / FINDS * 1e6


# ---- idle sessions


def idle() -> Figures:
    with process("session", library="zenlake") as other:
        endpoint = other.facts["endpoint"]

        def idle_bytes(library: str, traced: bool) -> dict[str, Any]:
            with process("session", library=library) as measured:
                return measured.ask("idle", count=IDLE_SESSIONS, endpoint=endpoint, traced=traced)

        for name, library in LIBRARIES.items():
            resident = idle_bytes(library, traced=False)["resident"] / IDLE_SESSIONS / 1024
            yield Figure(f"memory of an idle session, {name}", resident, "KiB")
        traced = idle_bytes("zenlake", traced=True)["traced"] / IDLE_SESSIONS / 1024
        yield Figure(f"Python objects of an idle session, {OURS}", traced, "KiB")


GROUPS: dict[str, Callable[[], Figures]] = {
    "ceiling": ceiling,
    "put": puts,
    "samples": samples,
    "round_trip": round_trips,
    "get": queries,
    "router": router,
    "routes": routes,
    "idle": idle,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.api", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(GROUPS))
    parser.add_argument(
        "--profile",
        choices=LIBRARIES.values(),
        help="profile the measured processes of this library",
    )
    given = parser.parse_args()
    for name in given.names:
        if name not in GROUPS:
            parser.error(f"no figures {name!r}; there are {', '.join(GROUPS)}")
    if given.profile:
        os.environ[PROFILE] = given.profile
    for name in given.names or GROUPS:
        for figure in GROUPS[name]():
            sys.stdout.write(figure.line() + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
