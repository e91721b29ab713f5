"""`zenlake put`: one value for a key, or one a line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from zenlake.cli import payload_input, publish_options, session_options
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import line_text, print_object, print_text, size_text


@session_options.connected
def put(
    at: session_options.SessionOptions,
    travel: publish_options.Travel,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key expression to put.")],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="The payload; - is standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="The payload is this file.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Put each line of standard input by itself.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="With --lines: end after so many.")
    ] = None,
    encoding: publish_options.EncodingOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a put, one a line.")
    ] = False,
) -> None:
    """Put a value: whoever subscribes to KEY gets it.

    Exit status: 0 it was sent, 1 nobody is connected, 2 wrong usage.

    \b
    Examples:
      zenlake put -e tcp/127.0.0.1:7447 demo/greeting hello
      zenlake put -e tcp/127.0.0.1:7447 robot/1/pose --file pose.json
      tail -f log.txt | zenlake put -e tcp/127.0.0.1:7447 demo/log - --lines
    """
    key = session_options.key_expr(key)
    if lines and (file is not None or value not in (None, payload_input.STANDARD_INPUT)):
        raise typer.BadParameter("--lines reads standard input: leave out VALUE and --file")
    if count is not None and not lines:
        raise typer.BadParameter("--count goes with --lines")
    if lines:
        data: Iterable[bytes] = payload_input.lines()
        kind = encoding or payload_input.TEXT
    else:
        one = payload_input.payload(value, file)
        if one is None:
            raise typer.BadParameter("what to put? Give VALUE, - or --file")
        data, kind = [one], payload_input.encoding_of(value, file, encoding)
    puts = size = 0
    with (
        session_options.opened(at, meet=True) as session,
        publish_options.publisher(session, key, travel) as publisher,
    ):
        for payload in data:
            publisher.put(payload, encoding=kind, attachment=travel.attachment)
            puts, size = puts + 1, size + len(payload)
            if json:
                print_object({"key": key, "size": len(payload), "encoding": kind})
            if puts == count:
                break
    if not json:
        times = [counted(puts, "time")] if lines else []
        print_text(line_text("PUT", key, b"", kind, [*times, kind, size_text(size)]))
