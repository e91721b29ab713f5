"""`zenlake sub`: what is put and deleted, as it comes."""

import time
from typing import Annotated

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import print_object, print_text, sample_object, sample_text

MAX_SECONDS = 86_400.0
RATE_SECONDS = 1.0  # between two lines of --rate


@session_options.connected
def sub(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Key expressions to subscribe to, such as demo/**."),
    ],
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after so many samples. Default: Ctrl-C."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", "--timeout", min=0.1, max=MAX_SECONDS, help="End after this time."
        ),
    ] = None,
    rate: Annotated[
        bool, typer.Option("--rate", help="Once a second, how many came, instead of what came.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a sample, one a line. value is JSON, text or hexadecimal text: "
            "form says which.",
        ),
    ] = False,
) -> None:
    """Subscribe, and show every sample; Ctrl-C ends it.

    Payloads are shown by their encoding: JSON and text as such, everything else as hexadecimal.

    Exit status: 0 samples came (with --count, as many), 1 fewer came in --seconds, 2 wrong usage,
    130 Ctrl-C before --count.

    \b
    Examples:
      zenlake sub -e tcp/127.0.0.1:7447 'demo/**'
      zenlake sub -e tcp/127.0.0.1:7447 'robot/*/pose' --count 1 --json | jq .value.x
      zenlake sub -l tcp/0.0.0.0:7447 '**' --rate
    """
    checked = [session_options.key_expr(key) for key in keys]
    came = 0
    inbox: CallbackQueue[zenlake.Sample] = CallbackQueue()
    with session_options.opened(at) as session, inbox:
        for key in checked:
            session.declare_subscriber(key, inbox.put)
        with session_options.until_interrupted(count):
            if rate:
                came = _count(inbox, count, seconds, as_json=json)
            else:
                for sample in inbox.items(count, seconds):
                    came += 1
                    if json:
                        print_object(sample_object(sample))
                    else:
                        print_text(sample_text(sample))
    if seconds is not None and came < (count or 1):
        wanted = f"only {came} of {counted(count, 'sample')}" if count else "no samples"
        session_options.fail(
            "sub",
            f"{wanted} on {' '.join(checked)} in {seconds:g} s. Does anybody put there? "
            "Wait longer with --seconds.",
        )


def _count(
    inbox: "CallbackQueue[zenlake.Sample]",
    count: int | None,
    seconds: float | None,
    *,
    as_json: bool,
) -> int:
    """Only how many and how large; the sum at the end."""
    came = 0
    began = time.monotonic()
    end = None if seconds is None else began + seconds
    while count is None or came < count:
        start = time.monotonic()
        span = RATE_SECONDS if end is None else min(RATE_SECONDS, end - start)
        if span <= 0:
            break
        sizes = [
            len(sample.payload)
            for sample in inbox.items(None if count is None else count - came, span)
        ]
        came += len(sizes)
        _print_rate(len(sizes), sum(sizes), time.monotonic() - start, came, as_json=as_json)
    return came


def _print_rate(samples: int, size: int, seconds: float, total: int, *, as_json: bool) -> None:
    if as_json:
        fields = {"samples": samples, "bytes": size, "seconds": round(seconds, 3), "total": total}
        print_object(fields)
        return
    per_second, megabytes = samples / seconds, size / seconds / 1e6
    print_text(f"{per_second:,.0f} samples/s, {megabytes:,.2f} MB/s, {total:,} in all")
