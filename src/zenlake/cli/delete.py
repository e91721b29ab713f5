"""`zenlake delete`: say that keys have no value any more."""

from typing import Annotated

import typer

from zenlake.cli import choices, connecting, publishing
from zenlake.cli.samples import line_text, print_object, print_text


@connecting.connected
def delete(
    at: connecting.Connection,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="The key expressions to delete.")
    ],
    attachment: publishing.AttachmentOption = None,
    priority: publishing.PriorityOption = choices.Priority.DATA,
    congestion_control: publishing.CongestionOption = choices.CongestionControl.BLOCK,
    reliability: publishing.ReliabilityOption = choices.Reliability.RELIABLE,
    express: publishing.ExpressOption = False,
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
    checked = [connecting.key_expr(key) for key in keys]
    with connecting.opened(at, meet=True) as session:
        for key in checked:
            with publishing.publisher(
                session, key, priority, congestion_control, reliability, express
            ) as publisher:
                publisher.delete(attachment=attachment)
            if json:
                print_object({"key": key})
            else:
                print_text(line_text("DELETE", key, b"", "", []))
