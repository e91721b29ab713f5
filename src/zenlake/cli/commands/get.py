"""`zenlake get`: ask, and show who replies what."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import zenlake
from zenlake.cli import choices, payload_input, session_options
from zenlake.cli.render.sample import (
    KIND_STYLES,
    content,
    entity,
    pretty,
    print_object,
    print_table,
    sample_object,
)

if TYPE_CHECKING:
    from rich.table import Table

MAX_SECONDS = 86_400.0
MAX_ROWS = 10_000  # of the table; --json has no such limit


@session_options.connected
def get(
    at: session_options.SessionOptions,
    selector: Annotated[
        str,
        typer.Argument(metavar="SELECTOR", help="KEY or KEY?PARAMETERS, such as demo/**?_time=.."),
    ],
    value: Annotated[
        str | None, typer.Option("--value", metavar="VALUE", help="Send this with the query.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Send this file with it.")
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(metavar="TYPE[;SCHEMA]", help="What --value or --file is."),
    ] = None,
    attachment: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to go along with the query.")
    ] = None,
    target: Annotated[
        choices.QueryTargetChoice | None, typer.Option(help="Who is asked. Default: best-matching.")
    ] = None,
    consolidation: Annotated[
        choices.ConsolidationChoice | None,
        typer.Option(help="Which of many replies for one key are shown. Default: auto."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.01, max=MAX_SECONDS, help="Seconds to wait for replies.")
    ] = 10.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many replies.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a reply, one a line, as they come; kind is PUT, DELETE or ERR.",
        ),
    ] = False,
) -> None:
    """Query, and show the replies.

    Exit status: 0 there was a reply, 1 there was none (or only errors), 2 wrong usage.

    \b
    Examples:
      zenlake get -e tcp/127.0.0.1:7447 'demo/**'
      zenlake get -e tcp/127.0.0.1:7447 'robot/*/pose?frame=map' --target all --timeout 2
      zenlake get -e tcp/127.0.0.1:7447 demo/greeting --json | jq -r .value
    """
    selector = session_options.selector(selector)
    data = payload_input.payload(value, file)
    found: list[dict[str, Any]] = []
    replies = good = 0
    with session_options.opened(at, meet=True) as session:
        for reply in session.get(
            selector,
            target=choices.to_api(target),
            consolidation=choices.to_api(consolidation),
            timeout=timeout,
            payload=data,
            encoding=None if data is None else payload_input.encoding_of(value, file, encoding),
            attachment=attachment,
        ):
            replies, good = replies + 1, good + (reply.ok is not None)
            if json:
                print_object(_object(reply))
            elif replies <= MAX_ROWS:
                found.append(_row(reply))
            if replies == count:
                break
    if found:
        print_table(_table(found))
        if replies > MAX_ROWS:
            typer.echo(f"and {replies - MAX_ROWS} more: --json shows all", err=True)
    if not good:
        session_options.fail("get", _nothing(selector, replies, timeout))


def _object(reply: "zenlake.Reply") -> dict[str, Any]:
    result, replier = reply.result, entity(reply.replier_id)
    if isinstance(result, zenlake.Sample):
        return {**sample_object(result), "replier": replier}
    encoding = str(result.encoding)
    return {
        "key": None,
        "kind": "ERR",
        **content(result.payload, encoding),
        "encoding": encoding,
        "replier": replier,
    }


def _row(reply: "zenlake.Reply") -> dict[str, Any]:
    lines = pretty(bytes(reply.result.payload), str(reply.result.encoding))
    return {**_object(reply), "value": "\n".join(lines)}


def _table(found: list[dict[str, Any]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from zenlake.cli.render.text import escape

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("key", overflow="fold", style="cyan")
    table.add_column("kind", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("encoding", overflow="fold")
    table.add_column("timestamp", overflow="fold")
    table.add_column("replier", overflow="fold")
    for row in found:
        time = (row.get("timestamp") or "").partition("/")[0]
        table.add_row(
            Text(escape(row["key"] or "")),
            Text(row["kind"], KIND_STYLES[row["kind"]]),
            Text(row["value"]),
            Text(escape(row["encoding"])),
            time,
            (row["replier"] or "").partition("/")[0],
        )
    return table


def _nothing(selector: str, errors: int, timeout: float) -> str:
    if errors:
        return f"{selector}: every reply is an error; it is what the replier says."
    return (
        f"{selector}: no reply. Does a queryable or storage serve this key? --target all asks "
        f"every one; replies after {timeout:g} s are not waited for (--timeout)."
    )
