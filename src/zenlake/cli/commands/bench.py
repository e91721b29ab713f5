"""`zenlake bench`: measure latency and throughput between two processes.

Knows what is measured and how it is printed. The far end is in bench_peer.py.
"""

import json as jsonlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from statistics import median, quantiles
from typing import Annotated, Any, NamedTuple

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.commands.bench_peer import serve_far_end, start_far_end
from zenlake.cli.durations import duration_option
from zenlake.cli.printing import print_object, print_table, properties_table
from zenlake.errors import ZError
from zenlake.quantities import counted

MAX_SECONDS = 3600.0
MAX_BYTES = 1 << 26
MAX_ROUNDS = 1_000_000
MAX_PUTS = 1_000_000_000
ANSWER_SECONDS = 5.0  # Longest wait for one answer of the far end.
FAR_END_SECONDS = 15.0  # Longest wait for the far end to answer at all.
DRAIN_SECONDS = 60.0  # Longest wait for an answer that is queued behind all puts.
STALL_SECONDS = 3.0  # Time without a new sample after which the rest counts as lost.
BURST = 64  # Puts between two checks of the clock.
PREFIX = "zenlake/bench"


class Measurement(NamedTuple):
    """One measurement: `fields` for programs, `text` for people."""

    name: str
    fields: dict[str, float]
    text: str


@session_options.expand_options
def bench(
    at: session_options.SessionOptions,
    size: Annotated[
        int, typer.Option(metavar="BYTES", min=0, max=MAX_BYTES, help="Size of a payload.")
    ] = 64,
    seconds: Annotated[
        float,
        duration_option(
            "--seconds", most=MAX_SECONDS, help="Time to put samples for the rates. Default: 1s."
        ),
    ] = 1.0,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=1, max=MAX_PUTS, help="End the puts after this many."),
    ] = 100_000,
    rounds: Annotated[
        int, typer.Option(min=1, max=MAX_ROUNDS, help="Number of round trips of each kind.")
    ] = 500,
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Prefix of the keys; both ends need the same.")
    ] = PREFIX,
    serve: Annotated[
        bool, typer.Option("--serve", help="Be the far end of another bench, until Ctrl-C.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per measurement, one per line.")
    ] = False,
) -> None:
    """Measure puts, queries and round trips between two processes.

    Without --connect and --listen the far end is a process on this machine, over loopback. With
    them it is a node that runs `zenlake bench --serve`.

    Exit status: 0 measured, 1 the far end does not answer, 2 wrong usage, 130 Ctrl-C.

    \b
    Examples:
      zenlake bench
      zenlake bench --size 8192 --seconds 5s --count 1000000 --json
      zenlake bench --serve -l tcp/0.0.0.0:7447    # on another machine, and then here:
      zenlake bench -e tcp/HOST:7447
    """
    key = session_options.check_key_expr(key)
    if serve:
        _serve(at, key)
        return
    results = []
    with _far_end(at, key) as reachable, session_options.open_session(reachable) as session:
        for measurement in _measure(session, key, bytes(size), seconds, count, rounds):
            results.append(measurement)
            if json:
                print_object({"measured": measurement.name, "size": size, **measurement.fields})
    if not json:
        rows = [(result.name, result.text) for result in results]
        print_table(properties_table([("payload", counted(size, "byte")), *rows]))


def _serve(at: session_options.SessionOptions, key: str) -> None:
    with (
        session_options.open_session(at) as session,
        session_options.end_on_interrupt(None),
        serve_far_end(session, key),
    ):
        while True:
            time.sleep(MAX_SECONDS)


@contextmanager
def _far_end(
    at: session_options.SessionOptions, key: str
) -> Iterator[session_options.SessionOptions]:
    """Yield the options that reach the far end; start one if the options name none."""
    if at.connect or at.listen or at.config:
        yield at
        return
    with start_far_end(key) as endpoint:
        yield session_options.SessionOptions(
            connect=[endpoint], cfg=at.cfg, no_multicast_scouting=True
        )


def _measure(
    session: "zenlake.Session", key: str, payload: bytes, seconds: float, count: int, rounds: int
) -> Iterator[Measurement]:
    _wait_for_far_end(session, key)
    yield _measure_put(session, key, payload, rounds)
    yield _measure_get(session, key, payload, rounds)
    yield from _measure_rates(session, key, payload, seconds, count)


def _wait_for_far_end(session: "zenlake.Session", key: str) -> None:
    until = time.monotonic() + FAR_END_SECONDS
    while time.monotonic() < until:
        if any(reply.ok for reply in session.get(f"{key}/echo", timeout=ANSWER_SECONDS)):
            return
        time.sleep(session_options.POLL_SECONDS)
    raise ZError(
        f"no far end answers on {key}/echo. Start it there: zenlake bench --serve -l ENDPOINT"
    )


# ---- round trips


def _measure_put(session: "zenlake.Session", key: str, payload: bytes, rounds: int) -> Measurement:
    pongs: SimpleQueue[None] = SimpleQueue()
    with (
        session.declare_subscriber(f"{key}/pong", lambda _: pongs.put(None)),
        session.declare_publisher(f"{key}/ping", express=True) as publisher,
    ):

        def trip() -> None:
            publisher.put(payload)
            pongs.get(timeout=ANSWER_SECONDS)

        return _time_rounds("put and put back", rounds, trip)


def _measure_get(session: "zenlake.Session", key: str, payload: bytes, rounds: int) -> Measurement:
    def trip() -> None:
        if not list(session.get(f"{key}/echo", payload=payload, timeout=ANSWER_SECONDS)):
            raise Empty

    return _time_rounds("get and reply", rounds, trip)


def _time_rounds(name: str, rounds: int, trip: Callable[[], None]) -> Measurement:
    took = []
    try:
        trip()  # The first one also waits for the declarations.
        for _ in range(rounds):
            start = time.perf_counter()
            trip()
            took.append((time.perf_counter() - start) * 1e6)
    except Empty:
        raise ZError(f"{name}: no answer within {ANSWER_SECONDS:g} s") from None
    half = median(took)
    slow = quantiles(took, n=100, method="inclusive")[-1] if len(took) > 1 else half
    fields = {"rounds": len(took), "median_us": round(half, 1), "p99_us": round(slow, 1)}
    return Measurement(name, fields, f"{half:,.0f} us, 99 of 100 below {slow:,.0f} us")


# ---- rates


def _measure_rates(
    session: "zenlake.Session", key: str, payload: bytes, seconds: float, count: int
) -> Iterator[Measurement]:
    """Put as fast as possible, and ask the far end how many samples it received."""
    _query_counter(session, f"{key}/count?reset")
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
    received = _wait_until_drained(session, key, sent)
    yield _rate("samples received", received["samples"], len(payload), received["seconds"])
    lost = sent - received["samples"]
    yield Measurement("lost", {"samples": lost}, f"{lost:,} of {sent:,}")


def _wait_until_drained(session: "zenlake.Session", key: str, sent: int) -> Any:
    """Return the far end's counts once it has all samples, or receives no more of them."""
    samples, until = 0, time.monotonic() + STALL_SECONDS
    while True:
        counts = _query_counter(session, f"{key}/count")
        if counts["samples"] > samples:
            samples, until = counts["samples"], time.monotonic() + STALL_SECONDS
        if samples >= sent or time.monotonic() > until:
            return counts
        time.sleep(session_options.POLL_SECONDS)


def _query_counter(session: "zenlake.Session", selector: str) -> Any:
    """Return the far end's counts."""
    for reply in session.get(selector, timeout=DRAIN_SECONDS):
        if reply.ok is not None:
            return jsonlib.loads(bytes(reply.ok.payload))
    raise ZError(f"{selector}: the far end does not answer any more")


def _rate(name: str, messages: int, size: int, seconds: float) -> Measurement:
    seconds = max(seconds, 1e-9)
    rate, volume = messages / seconds, messages * size / seconds / 1e6
    fields = {
        "messages": messages,
        "seconds": round(seconds, 3),
        "per_second": round(rate, 1),
        "megabytes_per_second": round(volume, 3),
    }
    return Measurement(name, fields, f"{rate:,.0f} per second, {volume:,.2f} MB/s")
