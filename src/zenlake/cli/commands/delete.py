"""`zenlake delete`: delete keys.

Knows options. Does not know how a delete is sent: publish_options does.
"""

from typing import Annotated

import typer

from zenlake.cli import publish_options, session_options
from zenlake.cli.options import json_option
from zenlake.cli.printing import print_line
from zenlake.cli.render.sample import format_line


@session_options.expand_options
def delete(
    at: session_options.SessionOptions,
    options: publish_options.PublishOptions,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Key expressions to delete.")],
    json: Annotated[bool, json_option("Print one JSON object per delete, one per line.")] = False,
) -> None:
    """Delete keys.

    Subscribers receive a DELETE, and storages remove the values.

    Exit status: 0 the delete was sent, 1 no node is connected, 2 wrong usage.

    \b
    Examples:
      zenlake delete -e tcp/127.0.0.1:7447 demo/greeting
      zenlake delete -e tcp/127.0.0.1:7447 'robot/1/**'
    """
    checked = [session_options.check_key_expr(key) for key in keys]
    with session_options.open_session(at, meet=True) as session:
        for key in checked:
            with publish_options.declare_publisher(session, key, options) as publisher:
                publisher.delete(attachment=options.attachment)
            print_line({"key": key} if json else format_line("DELETE", key, b"", "", []))
