"""`zenlake put`: one value for a key, or one a line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from zenlake.cli import choices, connecting, payloads, publishing
from zenlake.cli.samples import line_text, print_object, print_text, size_text


@connecting.connected
def put(
    at: connecting.Connection,
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
    encoding: publishing.EncodingOption = None,
    attachment: publishing.AttachmentOption = None,
    priority: publishing.PriorityOption = choices.Priority.DATA,
    congestion_control: publishing.CongestionOption = choices.CongestionControl.BLOCK,
    reliability: publishing.ReliabilityOption = choices.Reliability.RELIABLE,
    express: publishing.ExpressOption = False,
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
    key = connecting.key_expr(key)
    if lines and (file is not None or value not in (None, payloads.STANDARD_INPUT)):
        raise typer.BadParameter("--lines reads standard input: leave out VALUE and --file")
    if count is not None and not lines:
        raise typer.BadParameter("--count goes with --lines")
    if lines:
        data: Iterable[bytes] = payloads.lines()
        kind = encoding or payloads.TEXT
    else:
        one = payloads.payload(value, file)
        if one is None:
            raise typer.BadParameter("what to put? Give VALUE, - or --file")
        data, kind = [one], payloads.encoding_of(value, file, encoding)
    puts = size = 0
    with (
        connecting.opened(at, meet=True) as session,
        publishing.publisher(
            session, key, priority, congestion_control, reliability, express
        ) as publisher,
    ):
        for payload in data:
            publisher.put(payload, encoding=kind, attachment=attachment)
            puts, size = puts + 1, size + len(payload)
            if json:
                print_object({"key": key, "size": len(payload), "encoding": kind})
            if puts == count:
                break
    if not json:
        times = [f"{puts} times"] if lines else []
        print_text(line_text("PUT", key, b"", kind, [*times, kind, size_text(size)]))
