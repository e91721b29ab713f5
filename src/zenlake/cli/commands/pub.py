"""`zenlake pub`: the same value again and again, at a steady pace."""

import time
from typing import Annotated

import typer

from zenlake.cli import payload_input, publish_options, session_options
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import line_text, print_object, print_text, size_text

INDEX = "{i}"  # what is replaced by the number of the put
MAX_INTERVAL = 86_400.0
MAX_RATE = 1e6


@session_options.connected
def pub(
    at: session_options.SessionOptions,
    travel: publish_options.Travel,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key expression to put.")],
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="The payload; {i} in it becomes 0, 1, 2 and so on."),
    ],
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="How many puts. Default: until Ctrl-C."),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(min=0.0, max=MAX_INTERVAL, help="Seconds between two puts. Default: 1."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-4, max=MAX_RATE, help="Puts a second, instead of --interval."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Say only at the end what was put.")
    ] = False,
    encoding: publish_options.EncodingOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a put, one a line.")
    ] = False,
) -> None:
    """Put a value again and again; Ctrl-C ends it.

    Exit status: 0 all was sent, 1 the session failed, 2 wrong usage, 130 Ctrl-C before --count.

    \b
    Examples:
      zenlake pub -e tcp/127.0.0.1:7447 demo/counter 'count {i}'
      zenlake pub -l tcp/127.0.0.1:7447 demo/load x --rate 1000 --count 10000 --quiet
    """
    key = session_options.key_expr(key)
    if interval is not None and rate is not None:
        raise typer.BadParameter("give --interval or --rate, not both")
    pause = 1.0 / rate if rate is not None else 1.0 if interval is None else interval
    kind = payload_input.encoding_of(value, None, encoding)
    puts = size = 0
    began = time.monotonic()
    with (
        session_options.opened(at) as session,
        publish_options.publisher(session, key, travel) as publisher,
        session_options.until_interrupted(count),
    ):
        began = time.monotonic()
        while True:
            payload = value.replace(INDEX, str(puts)).encode(errors="surrogateescape")
            publisher.put(payload, encoding=kind, attachment=travel.attachment)
            puts, size = puts + 1, size + len(payload)
            if json and not quiet:
                print_object({"key": key, "index": puts - 1, "size": len(payload)})
            elif not quiet:
                print_text(line_text("PUT", key, payload, kind, []))
            if puts == count:
                break
            time.sleep(max(0.0, began + puts * pause - time.monotonic()))
    seconds = time.monotonic() - began
    if json:
        print_object({"key": key, "puts": puts, "bytes": size, "seconds": round(seconds, 3)})
    else:
        print_text(f"{counted(puts, 'put')}, {size_text(size)} in {seconds:.2f} s")
