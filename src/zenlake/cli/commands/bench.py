"""`zenlake bench`: how fast it is here, between two processes.

Knows what is measured and how it is shown. What the far end does is in benchpeer.py.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.render.sample import console, print_object, size_text
from zenlake.errors import ZError

MAX_SECONDS = 3600.0
MAX_BYTES = 1 << 26
MAX_ROUNDS = 1_000_000
MAX_PUTS = 1_000_000_000
ANSWER_SECONDS = 5.0  # for one answer of the far end
FAR_END_SECONDS = 15.0  # for the far end to be there
DRAIN_SECONDS = 60.0  # for an answer that stands behind all that was put
STALL_SECONDS = 3.0  # without one more sample: the rest is lost
BURST = 64  # puts between two looks at the clock
PREFIX = "zenlake/bench"


class Measured(NamedTuple):
    """One line: `fields` for programs, `text` for people."""

    name: str
    fields: dict[str, float]
    text: str


@session_options.connected
def bench(
    at: session_options.SessionOptions,
    size: Annotated[
        int, typer.Option(metavar="BYTES", min=0, max=MAX_BYTES, help="Of a payload.")
    ] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MAX_SECONDS, help="How long to put, for the rates;")
    ] = 1.0,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=1, max=MAX_PUTS, help="or until there are so many."),
    ] = 100_000,
    rounds: Annotated[
        int, typer.Option(min=1, max=MAX_ROUNDS, help="How many round trips of each kind.")
    ] = 500,
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Where to put: both ends need the same.")
    ] = PREFIX,
    serve: Annotated[
        bool, typer.Option("--serve", help="Be the far end for others, until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a measurement, one a line.")
    ] = False,
) -> None:
    """Measure puts, queries and round trips between two processes.

    Without --connect and --listen the far end is a process of its own on this machine, over
    loopback. Else it is whoever runs `zenlake bench --serve`.

    Exit status: 0 measured, 1 the far end does not answer, 2 wrong usage, 130 Ctrl-C.

    \b
    Examples:
      zenlake bench
      zenlake bench --size 8192 --seconds 5 --count 1000000 --json
      zenlake bench --serve -l tcp/0.0.0.0:7447    # on another machine, and then here:
      zenlake bench -e tcp/HOST:7447
    """
    key = session_options.key_expr(key)
    if serve:
        _serve(at, key)
        return
    results = []
    with _far_end(at, key) as reachable, session_options.opened(reachable) as session:
        for measured in _measurements(session, key, bytes(size), seconds, count, rounds):
            results.append(measured)
            if json:
                print_object({"measured": measured.name, "size": size, **measured.fields})
    if not json:
        _print(results, size)


def _serve(at: session_options.SessionOptions, key: str) -> None:
    from zenlake.cli.commands.bench_peer import far_end

    with (
        session_options.opened(at) as session,
        session_options.until_interrupted(None),
        far_end(session, key),
    ):
        while True:
            time.sleep(MAX_SECONDS)


@contextmanager
def _far_end(
    at: session_options.SessionOptions, key: str
) -> Iterator[session_options.SessionOptions]:
    """Where the far end is reached; it is started if nobody said where."""
    if at.connect or at.listen or at.config:
        yield at
        return
    from zenlake.cli.commands.bench_peer import started

    with started(key) as endpoint:
        yield session_options.SessionOptions(
            connect=[endpoint], cfg=at.cfg, no_multicast_scouting=True
        )


def _measurements(
    session: "zenlake.Session",
    key: str,
    payload: bytes,
    seconds: float,
    count: int,
    rounds: int,
) -> Iterator[Measured]:
    _wait_for_far_end(session, key)
    yield _round_trips("put and put back", rounds, *_put_round(session, key, payload))
    yield _round_trips("get and reply", rounds, *_get_round(session, key, payload))
    yield from _rates(session, key, payload, seconds, count)


def _wait_for_far_end(session: "zenlake.Session", key: str) -> None:
    until = time.monotonic() + FAR_END_SECONDS
    while time.monotonic() < until:
        if any(reply.ok for reply in session.get(f"{key}/echo", timeout=ANSWER_SECONDS)):
            return
        time.sleep(session_options.POLL_SECONDS)
    raise ZError(
        f"nobody answers on {key}/echo. Start the far end there: zenlake bench --serve -l ENDPOINT"
    )


def _put_round(
    session: "zenlake.Session", key: str, payload: bytes
) -> tuple[Callable[[], None], Any]:
    """One round trip, and what to undeclare at the end."""
    back: SimpleQueue[None] = SimpleQueue()
    subscriber = session.declare_subscriber(f"{key}/pong", lambda _: back.put(None))
    publisher = session.declare_publisher(f"{key}/ping", express=True)

    def once() -> None:
        publisher.put(payload)
        back.get(timeout=ANSWER_SECONDS)

    return once, (publisher, subscriber)


def _get_round(
    session: "zenlake.Session", key: str, payload: bytes
) -> tuple[Callable[[], None], Any]:
    def once() -> None:
        if not list(session.get(f"{key}/echo", payload=payload, timeout=ANSWER_SECONDS)):
            raise Empty

    return once, ()


def _round_trips(name: str, rounds: int, once: Callable[[], None], declared: Any) -> Measured:
    took = []
    try:
        once()  # the first also waits for what was declared
        for _ in range(rounds):
            start = time.perf_counter()
            once()
            took.append((time.perf_counter() - start) * 1e6)
    except Empty:
        raise ZError(f"{name}: no answer within {ANSWER_SECONDS:g} s") from None
    for one in declared:
        one.undeclare()
    half = median(took)
    slow = quantiles(took, n=100, method="inclusive")[-1] if len(took) > 1 else half
    fields = {"rounds": len(took), "median_us": round(half, 1), "p99_us": round(slow, 1)}
    return Measured(name, fields, f"{half:,.0f} us, 99 of 100 below {slow:,.0f} us")


def _rates(
    session: "zenlake.Session", key: str, payload: bytes, seconds: float, count: int
) -> Iterator[Measured]:
    """Sent as fast as it goes, and what the far end got of it."""
    _received(session, f"{key}/count?reset")
    block = zenlake.CongestionControl.BLOCK
    sent = 0
    with session.declare_publisher(f"{key}/data", congestion_control=block) as publisher:
        start = time.perf_counter()
        while time.perf_counter() < start + seconds and sent != count:
            burst = min(BURST, count - sent)
            for _ in range(burst):
                publisher.put(payload)
            sent += burst
        took = time.perf_counter() - start
    yield _rate("puts", sent, len(payload), took)
    got = _drained(session, key, sent)
    yield _rate("samples received", got["samples"], len(payload), got["seconds"])
    lost = sent - got["samples"]
    yield Measured("lost", {"samples": lost}, f"{lost:,} of {sent:,}")


def _drained(session: "zenlake.Session", key: str, sent: int) -> Any:
    """What the far end has counted when all is there, or nothing comes any more."""
    samples, until = 0, time.monotonic() + STALL_SECONDS
    while True:
        got = _received(session, f"{key}/count")
        if got["samples"] > samples:
            samples, until = got["samples"], time.monotonic() + STALL_SECONDS
        if samples >= sent or time.monotonic() > until:
            return got
        time.sleep(session_options.POLL_SECONDS)


def _received(session: "zenlake.Session", selector: str) -> Any:
    """What the far end has counted."""
    import json

    for reply in session.get(selector, timeout=DRAIN_SECONDS):
        if reply.ok is not None:
            return json.loads(bytes(reply.ok.payload))
    raise ZError(f"{selector}: the far end does not answer any more")


def _rate(name: str, messages: int, size: int, seconds: float) -> Measured:
    seconds = max(seconds, 1e-9)
    rate, volume = messages / seconds, messages * size / seconds / 1e6
    fields = {
        "messages": messages,
        "seconds": round(seconds, 3),
        "per_second": round(rate, 1),
        "megabytes_per_second": round(volume, 3),
    }
    return Measured(name, fields, f"{rate:,.0f} a second, {volume:,.2f} MB/s")


def _print(results: list[Measured], size: int) -> None:
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    table.add_row("payload", size_text(size))
    for measured in results:
        table.add_row(measured.name, measured.text)
    console().print(table)
