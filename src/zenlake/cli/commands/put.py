"""`zenlake put`: put one value, or one per line of standard input.

Knows options. Does not know how a put is sent: publish_options does.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from zenlake.cli import payload_input, publish_options, session_options
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_object, print_text
from zenlake.cli.render.sample import format_line
from zenlake.quantities import counted


@session_options.expand_options
def put(
    at: session_options.SessionOptions,
    options: publish_options.PublishOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key expression to put to.")],
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="Payload; - reads standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Put the content of this file."),
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Put each line of standard input separately.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="With --lines: end after this many.")
    ] = None,
    encoding: publish_options.EncodingOption = None,
    json: Annotated[bool, json_option("Print one JSON object per put, one per line.")] = False,
) -> None:
    """Put a value to the subscribers of KEY.

    Exit status: 0 the value was sent, 1 no node is connected, 2 wrong usage.

    \b
    Examples:
      zenlake put -e tcp/127.0.0.1:7447 demo/greeting hello
      zenlake put -e tcp/127.0.0.1:7447 robot/1/pose --file pose.json
      tail -f log.txt | zenlake put -e tcp/127.0.0.1:7447 demo/log - --lines
    """
    key = session_options.check_key_expr(key)
    if lines and (file is not None or value not in (None, payload_input.STANDARD_INPUT)):
        raise typer.BadParameter("--lines reads standard input: leave out VALUE and --file")
    if count is not None and not lines:
        raise typer.BadParameter("--count goes with --lines")
    if lines:
        data: Iterable[bytes] = payload_input.read_lines()
        kind = encoding or payload_input.TEXT
    else:
        single = payload_input.read_payload(value, file)
        if single is None:
            raise typer.BadParameter("what to put? Give VALUE, - or --file")
        data, kind = [single], payload_input.choose_encoding(value, file, encoding)
    puts = size = 0
    with (
        session_options.open_session(at, meet=True) as session,
        publish_options.declare_publisher(session, key, options) as publisher,
    ):
        for payload in data:
            publisher.put(payload, encoding=kind, attachment=options.attachment)
            puts, size = puts + 1, size + len(payload)
            if json:
                print_object({"key": key, "size": len(payload), "encoding": kind})
            if puts == count:
                break
    if not json:
        times = [counted(puts, "time")] if lines else []
        print_text(format_line("PUT", key, b"", kind, [*times, kind, counted(size, "byte")]))
