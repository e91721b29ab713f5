"""The session API beside eclipse-zenoh's, in one run and in turns.

What is measured has a process of its own and listens; who sends to it and who receives from it are
zenlake clients below the API (`api_peer.py`), the same for both, so that they are not the limit.
`python -m bench.api [--profile] [NAME ...]` measures some figures alone.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median, quantiles
from typing import Any

import zenlake
from bench.api_peer import PROFILE
from bench.figures import Figure, Figures
from zenlake.api.pubsub.outbound_route import OutboundRoute
from zenlake.routing import Routing
from zenlake.wire.declare import Declare, DeclareSubscriber
from zenlake.wire.enums import WireWhatAmI
from zenlake.wire.qos import DEFAULT
from zenlake.wire.wireexpr import WireExpr
from zenlake.wire.zenohid import WireZenohId

SIZES = (8, 64, 1024, 65_536)
TURNS = 3
SECONDS = 0.5
STALL, SHORT_STALL = 5.0, 0.3  # seconds without one more: no more come
PINGS = 1000
RECEIVERS = 10
SUBSCRIPTIONS = (1, 1_000, 100_000)
FINDS = 2_000
IDLE_SESSIONS = 20
PATIENCE = 60.0
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
ROUTE_AIM = 2  # as long among 100,000 as among one, but for noise


class Process:
    """One process of the benchmark. It ends when its input does, and when it is asked too long."""

    def __init__(self, role: str, module: str = "bench.api_peer", **arguments: Any) -> None:
        self.name = f"{role} {arguments}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, role, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self.answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.begin(do, **arguments)
        return self.answer()

    def begin(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        too_late = threading.Timer(PATIENCE, self._process.kill)
        too_late.start()
        line = self._process.stdout.readline()
        too_late.cancel()
        too_late.join()
        if not line:
            self.close()
            raise RuntimeError(f"{self.name} ended without an answer; its error stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def count(self) -> int:
        return int(self.ask("counted")["count"])

    def close(self) -> None:
        try:
            self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def process(role: str, module: str = "bench.api_peer", **arguments: Any) -> Iterator[Process]:
    found = Process(role, module, **arguments)
    try:
        yield found
    finally:
        found.close()


def in_turns(jobs: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, taken in turns so that a noisy minute hits all; the first warms up."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(TURNS + 1):
        for name, job in jobs.items():
            value = job()
            if turn:
                found[name].append(value)
    return {name: median(values) for name, values in found.items()}


def figures() -> Figures:
    for measure in GROUPS.values():
        yield from measure()


# ---- the limits of the benchmark


def ceiling() -> Figures:
    """What feeds, into what takes: a figure that comes near is not that of what is measured."""
    with (
        process("open_sink") as sink,
        process("feed", endpoint=sink.facts["endpoint"]) as feed,
    ):
        for size in SIZES:
            rate = in_turns({"feed": partial(fed, feed, sink, size)})["feed"]
            yield Figure(f"ceiling of this benchmark, {size} B", rate, "messages/s")


# ---- out


class Publishing:
    """A measured session, and a sink that takes what it puts."""

    def __init__(self, measured: Process, sink: Process) -> None:
        self.measured = measured
        self.sink = sink
        self.shares: list[float] = []

    def rate(self, do: str, **arguments: Any) -> float:
        """Calls or rows a second. What is not to be dropped has all arrived."""
        before = self.sink.count
        found = self.measured.ask(do, seconds=SECONDS, **arguments)
        sent = found["sent"]
        if arguments.get("congestion_control") == DROP:
            arrived = self.sink.ask("arrived", expected=before + sent, stall=SHORT_STALL)
            self.shares.append((arrived["count"] - before) / sent)
        else:
            all_arrived(self.sink, before + sent)
        return float(found["rate"])


def all_arrived(receiver: Process, expected: int) -> float:
    """When all were there."""
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

    rates = in_turns(
        {
            **{name: put(side, BLOCK) for name, side in sides.items()},
            "put_batch": partial(sides[OURS].rate, "put_batch", size=size),
        }
    )
    batches = rates.pop("put_batch")
    yield from beside(f"put, {size} B, {BLOCK}", rates, "calls/s", AIMS["put"])
    for side in sides.values():
        side.shares.clear()
    dropping = in_turns({name: put(side, DROP) for name, side in sides.items()})
    yield from beside(f"put, {size} B, {DROP}", dropping, "calls/s", AIMS["put"])
    for name, side in sides.items():
        yield Figure(f"put, {size} B, {DROP}, {name}, arrived", median(side.shares) * 100, "%")
    yield Figure(f"put_batch, {size} B, {OURS}", batches, "rows/s")
    name = f"put_batch, {size} B, beside {THEIRS}'s put"
    yield Figure(name, batches / rates[THEIRS], "x", AIMS["put_batch"])


def beside(what: str, rates: dict[str, float], unit: str, at_least: float | None) -> Figures:
    for name, rate in rates.items():
        yield Figure(f"{what}, {name}", rate, unit)
    yield Figure(f"{what}, beside {THEIRS}", rates[OURS] / rates[THEIRS], "x", at_least)


# ---- in


class Receiving:
    """A measured session, and what feeds it."""

    def __init__(self, measured: Process, feed: Process) -> None:
        self.measured = measured
        self.feed = feed

    def rate(self, into: str, size: int) -> float:
        self.measured.ask("receive", into=into)
        return fed(self.feed, self.measured, size)


def fed(feed: Process, receiver: Process, size: int, copies: int = 1) -> float:
    """Messages a second that come to `receiver`, from the first sent to the last there."""
    before = receiver.count
    sent = feed.ask("feed", size=size, seconds=SECONDS)
    count = sent["sent"] * copies
    return float(count / (all_arrived(receiver, before + count) - sent["time"]))


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
            rates = in_turns(jobs)
            arrow = rates.pop("arrow")
            yield from beside(f"callback, {size} B", rates, "samples/s", AIMS["callback"])
            yield Figure(f"Arrow batches, {size} B, {OURS}", arrow, "samples/s")
            name = f"Arrow batches, {size} B, beside {THEIRS}'s callback"
            yield Figure(name, arrow / rates[THEIRS], "x", AIMS["arrow"])
        reading = in_turns(
            {name: partial(side.rate, "reading", 64) for name, side in sides.items()}
        )
        yield from beside("callback that reads key and payload, 64 B", reading, "samples/s", None)


# ---- there and back


@contextmanager
def pair(library: str) -> Iterator[tuple[Process, Process]]:
    """One that answers, and the measured one."""
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
            taken: dict[str, list[float]] = {name: [] for name in near}
            for turn in range(TURNS + 1):
                for name, one in near.items():
                    seconds = one.ask("ping", rounds=PINGS, indirect=indirect)["seconds"]
                    if turn:
                        taken[name] += seconds
            kind = "" if indirect else ", indirect=False"
            for words, of in PARTS_OF_TIME.items():
                what = f"round trip of 64 B{kind}, {words}"
                found = {name: of(values) * 1e6 for name, values in taken.items()}
                for name, value in found.items():
                    yield Figure(f"{what}, {name}", value, "us")
                ratio = found[OURS] / found[THEIRS]
                yield Figure(f"{what}, beside {THEIRS}", ratio, "x", None, ROUND_TRIP_AIM)


def percentile_99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[-1]


PARTS_OF_TIME: dict[str, Callable[[list[float]], float]] = {
    "median": median,
    "99 %": percentile_99,
}


def queries() -> Figures:
    with ExitStack() as stack:
        near: dict[str, Process] = {}
        for name, library in LIBRARIES.items():
            far, near[name] = stack.enter_context(pair(library))
            far.ask("answer")

        def rate(one: Process) -> float:
            return float(one.ask("get", seconds=SECONDS)["rate"])

        rates = in_turns({name: partial(rate, one) for name, one in near.items()})
        yield from beside("get with one reply", rates, "queries/s", AIMS["get"])


# ---- through a router


@contextmanager
def forwarding(library: str, receivers: int) -> Iterator[Callable[[int], float]]:
    """Messages a second that leave a router of `library`, for as many receivers."""
    with (
        process("session", library=library, mode="router") as router,
        process("sink", endpoint=router.facts["endpoint"], sessions=receivers) as sink,
        process("feed", endpoint=router.facts["endpoint"]) as feed,
    ):
        until_all_hear(feed, sink, receivers)
        yield partial(fed, feed, sink, copies=receivers)


def until_all_hear(feed: Process, sink: Process, receivers: int) -> None:
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
                rates = in_turns({name: partial(rate, size) for name, rate in sides.items()})
                what = f"router, 1 to {receivers}, {size} B"
                yield from beside(what, rates, "messages/s", AIMS["router"])


# ---- who gets it


def routes() -> Figures:
    """The time to find where a put goes, among subscriptions that do not match."""
    config = zenlake.Config()
    for key, value in {
        "mode": "'router'",
        "listen/endpoints": "[]",
        "connect/endpoints": "[]",
        "scouting/multicast/enabled": "false",
    }.items():
        config.insert_json5(key, value)
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
                taken[name][count] = in_turns({name: partial(microseconds, job)})[name]
    for name, by_count in taken.items():
        for count, found in by_count.items():
            yield Figure(f"{name} among {count}", found, "us")
        ratio = by_count[SUBSCRIPTIONS[-1]] / by_count[SUBSCRIPTIONS[0]]
        what = f"{name}, {SUBSCRIPTIONS[-1]} beside {SUBSCRIPTIONS[0]}"
        yield Figure(what, ratio, "x", None, ROUTE_AIM)


def declare(routing: Routing, count: int) -> None:
    """So many subscriptions of one client, every tenth with a wildcard."""
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


# ---- doing nothing


def idle() -> Figures:
    with process("session", library="zenlake") as other:
        endpoint = other.facts["endpoint"]

        def taken(library: str, traced: bool) -> dict[str, Any]:
            with process("session", library=library) as measured:
                return measured.ask("idle", count=IDLE_SESSIONS, endpoint=endpoint, traced=traced)

        for name, library in LIBRARIES.items():
            resident = taken(library, traced=False)["resident"] / IDLE_SESSIONS / 1024
            yield Figure(f"memory of an idle session, {name}", resident, "KiB")
        traced = taken("zenlake", traced=True)["traced"] / IDLE_SESSIONS / 1024
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
        "--profile", choices=LIBRARIES.values(), help="where its measured processes spend time"
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
