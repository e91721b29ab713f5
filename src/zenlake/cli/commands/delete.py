"""`zenlake delete`: say that keys have no value any more."""

from typing import Annotated

import typer

from zenlake.cli import publish_options, session_options
from zenlake.cli.render.sample import line_text, print_object, print_text


@session_options.connected
def delete(
    at: session_options.SessionOptions,
    travel: publish_options.Travel,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="The key expressions to delete.")
    ],
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a delete, one a line.")
    ] = False,
) -> None:
    """Delete keys: whoever subscribes to them is told, and storages forget them.

    Exit status: 0 it was sent, 1 nobody is connected, 2 wrong usage.

    \b
    Examples:
      zenlake delete -e tcp/127.0.0.1:7447 demo/greeting
      zenlake delete -e tcp/127.0.0.1:7447 'robot/1/**'
    """
    checked = [session_options.key_expr(key) for key in keys]
    with session_options.opened(at, meet=True) as session:
        for key in checked:
            with publish_options.publisher(session, key, travel) as publisher:
                publisher.delete(attachment=travel.attachment)
            if json:
                print_object({"key": key})
            else:
                print_text(line_text("DELETE", key, b"", "", []))
