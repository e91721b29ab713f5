"""`zenlake sub`: subscribe, and show samples as they arrive.

Knows options. Does not know how a sample is printed: render/sample.py does.
"""

import time
from contextlib import closing
from typing import Annotated

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.failure import fail
from zenlake.cli.options import count_option, duration_option, json_option
from zenlake.cli.printing import print_line
from zenlake.cli.render.sample import describe_sample, format_sample
from zenlake.quantities import counted

RATE_SECONDS = 1.0  # Time between two lines of --rate.


@session_options.expand_options
def sub(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Key expressions to subscribe to, such as demo/**."),
    ],
    count: Annotated[int | None, count_option("samples", endless=True)] = None,
    seconds: Annotated[
        float | None,
        duration_option("--seconds", "--timeout", help="End after this time, such as 30s."),
    ] = None,
    rate: Annotated[
        bool, typer.Option("--rate", help="Print rates once per second instead of samples.")
    ] = False,
    json: Annotated[
        bool,
        json_option(
            "Print one JSON object per sample, one per line. value is JSON, text or hexadecimal "
            "text: form says which."
        ),
    ] = False,
) -> None:
    """Subscribe to keys and show every sample, until Ctrl-C.

    Payloads are shown by their encoding: JSON and text as such, everything else as hexadecimal.

    Exit status: 0 samples arrived (with --count, that many), 1 fewer arrived within --seconds, 2
    wrong usage, 130 Ctrl-C before --count.

    \b
    Examples:
      zenlake sub -e tcp/127.0.0.1:7447 'demo/**'
      zenlake sub -e tcp/127.0.0.1:7447 'robot/*/pose' --count 1 --json | jq .value.x
      zenlake sub -l tcp/0.0.0.0:7447 '**' --rate
    """
    checked = [session_options.check_key_expr(key) for key in keys]
    received = 0
    inbox: CallbackQueue[zenlake.Sample] = CallbackQueue()
    with session_options.open_session(at) as session, closing(inbox):
        for key in checked:
            session.declare_subscriber(key, inbox.put)
        with session_options.end_on_interrupt(count):
            if rate:
                received = _print_rates(inbox, count, seconds, as_json=json)
            else:
                for sample in inbox.items(count, seconds):
                    received += 1
                    print_line(describe_sample(sample) if json else format_sample(sample))
    if seconds is not None and received < (count or 1):
        wanted = f"only {received} of {counted(count, 'sample')}" if count else "no samples"
        fail(
            "sub",
            f"{wanted} on {' '.join(checked)} in {seconds:g} s. Does a node publish there? "
            "Wait longer with --seconds.",
        )


def _print_rates(
    inbox: "CallbackQueue[zenlake.Sample]",
    count: int | None,
    seconds: float | None,
    *,
    as_json: bool,
) -> int:
    """Print rates until the end; return the number of samples."""
    received = 0
    began = time.monotonic()
    end = None if seconds is None else began + seconds
    while count is None or received < count:
        start = time.monotonic()
        span = RATE_SECONDS if end is None else min(RATE_SECONDS, end - start)
        if span <= 0:
            break
        sizes = [
            len(sample.payload)
            for sample in inbox.items(None if count is None else count - received, span)
        ]
        received += len(sizes)
        samples, size, took = len(sizes), sum(sizes), time.monotonic() - start
        fields = {"samples": samples, "bytes": size, "seconds": round(took, 3), "total": received}
        rates = f"{samples / took:,.0f} samples/s, {size / took / 1e6:,.2f} MB/s"
        print_line(fields if as_json else f"{rates}, {received:,} in all")
    return received
