"""`zenlake pub`: put a value repeatedly, at a steady rate.

Knows options and the clock. Does not know how a put is sent: publish_options does.
"""

import time
from typing import Annotated

import typer

from zenlake.cli import payload_input, publish_options, session_options
from zenlake.cli.options import count_option, duration_option, json_option
from zenlake.cli.printing import print_line
from zenlake.cli.render.sample import format_line
from zenlake.quantities import counted

INDEX = "{i}"  # Placeholder in VALUE for the number of the put.
MAX_RATE = 1e6


@session_options.expand_options
def pub(
    at: session_options.SessionOptions,
    options: publish_options.PublishOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key expression to put to.")],
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="Payload; {i} in it becomes 0, 1, 2 and so on."),
    ],
    count: Annotated[int | None, count_option("puts", endless=True)] = None,
    interval: Annotated[
        float | None,
        duration_option("--interval", least=0.0, help="Time between two puts. Default: 1s."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-4, max=MAX_RATE, help="Puts per second, instead of --interval."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the totals at the end.")
    ] = False,
    encoding: publish_options.EncodingOption = None,
    json: Annotated[bool, json_option("Print one JSON object per put, one per line.")] = False,
) -> None:
    """Put a value repeatedly, until Ctrl-C or --count.

    Exit status: 0 all puts were sent, 1 the session failed, 2 wrong usage, 130 Ctrl-C before
    --count.

    \b
    Examples:
      zenlake pub -e tcp/127.0.0.1:7447 demo/counter 'count {i}'
      zenlake pub -l tcp/127.0.0.1:7447 demo/load x --rate 1000 --count 10000 --quiet
    """
    key = session_options.check_key_expr(key)
    if interval is not None and rate is not None:
        raise typer.BadParameter("give --interval or --rate, not both")
    pause = 1.0 / rate if rate is not None else 1.0 if interval is None else interval
    kind = payload_input.choose_encoding(value, None, encoding)
    puts = size = 0
    began = time.monotonic()
    with (
        session_options.open_session(at) as session,
        publish_options.declare_publisher(session, key, options) as publisher,
        session_options.end_on_interrupt(count),
    ):
        began = time.monotonic()
        while True:
            payload = value.replace(INDEX, str(puts)).encode(errors="surrogateescape")
            publisher.put(payload, encoding=kind, attachment=options.attachment)
            puts, size = puts + 1, size + len(payload)
            if not quiet:
                fields = {"key": key, "index": puts - 1, "size": len(payload)}
                print_line(fields if json else format_line("PUT", key, payload, kind, []))
            if puts == count:
                break
            if (left := began + puts * pause - time.monotonic()) > 0:
                time.sleep(left)
    seconds = time.monotonic() - began
    total = {"key": key, "puts": puts, "bytes": size, "seconds": round(seconds, 3)}
    text = f"{counted(puts, 'put')}, {counted(size, 'byte')} in {seconds:.2f} s"
    print_line(total if json else text)
