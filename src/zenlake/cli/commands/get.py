"""`zenlake get`: query, and show the replies.

Knows options and the table of replies. Does not know sessions: session_options does.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import zenlake
from zenlake.cli import payload_input, session_options
from zenlake.cli.failure import fail
from zenlake.cli.options import (
    ConsolidationChoice,
    QueryTargetChoice,
    TimeoutOption,
    count_option,
    json_option,
    to_api,
)
from zenlake.cli.printing import print_object, print_table
from zenlake.cli.render.sample import (
    KIND_STYLES,
    describe_payload,
    describe_sample,
    format_entity,
    format_payload,
)

if TYPE_CHECKING:
    from rich.table import Table

MAX_ROWS = 10_000  # Rows of the table; --json has no such limit.


@session_options.expand_options
def get(
    at: session_options.SessionOptions,
    selector: Annotated[
        str,
        typer.Argument(
            metavar="SELECTOR", help="KEY or KEY?PARAMETERS, such as demo/**?_time=[now(-1h)..]."
        ),
    ],
    value: Annotated[
        str | None, typer.Option("--value", metavar="VALUE", help="Payload of the query.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="File whose content is the payload."),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(metavar="TYPE[;SCHEMA]", help="Encoding of the payload."),
    ] = None,
    attachment: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to attach to the query.")
    ] = None,
    target: Annotated[
        QueryTargetChoice | None,
        typer.Option(help="Which queryables to ask. Default: best-matching."),
    ] = None,
    consolidation: Annotated[
        ConsolidationChoice | None,
        typer.Option(help="Which of several replies for one key to keep. Default: auto."),
    ] = None,
    timeout: TimeoutOption = 10.0,
    count: Annotated[int | None, count_option("replies")] = None,
    json: Annotated[
        bool,
        json_option(
            "Print one JSON object per reply, one per line, as it arrives; kind is PUT, DELETE or "
            "ERR."
        ),
    ] = False,
) -> None:
    """Query a selector and show the replies.

    Exit status: 0 a reply arrived, 1 no reply (or only errors) arrived, 2 wrong usage.

    \b
    Examples:
      zenlake get -e tcp/127.0.0.1:7447 'demo/**'
      zenlake get -e tcp/127.0.0.1:7447 'robot/*/pose?frame=map' --target all --timeout 2
      zenlake get -e tcp/127.0.0.1:7447 demo/greeting --json | jq -r .value
    """
    selector = session_options.check_selector(selector)
    data = payload_input.read_payload(value, file)
    found: list[dict[str, Any]] = []
    replies = good = 0
    with session_options.open_session(at, meet=True) as session:
        for reply in session.get(
            selector,
            target=to_api("QueryTarget", target),
            consolidation=to_api("ConsolidationMode", consolidation),
            timeout=timeout,
            payload=data,
            encoding=None if data is None else payload_input.choose_encoding(value, file, encoding),
            attachment=attachment,
        ):
            replies, good = replies + 1, good + (reply.ok is not None)
            if json:
                print_object(_describe_reply(reply))
            elif replies <= MAX_ROWS:
                found.append(_describe_row(reply))
            if replies == count:
                break
    if found:
        print_table(_table(found))
        if replies > MAX_ROWS:
            typer.echo(f"and {replies - MAX_ROWS} more: --json shows all", err=True)
    if not good:
        fail("get", _explain_nothing(selector, replies, timeout))


def _describe_reply(reply: "zenlake.Reply") -> dict[str, Any]:
    result, replier = reply.result, format_entity(reply.replier_id)
    if isinstance(result, zenlake.Sample):
        return {**describe_sample(result), "replier": replier}
    encoding = str(result.encoding)
    return {
        "key": None,
        "kind": "ERR",
        **describe_payload(result.payload, encoding),
        "encoding": encoding,
        "replier": replier,
    }


def _describe_row(reply: "zenlake.Reply") -> dict[str, Any]:
    lines = format_payload(bytes(reply.result.payload), str(reply.result.encoding))
    return {**_describe_reply(reply), "value": "\n".join(lines)}


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


def _explain_nothing(selector: str, errors: int, timeout: float) -> str:
    if errors:
        return f"{selector}: every reply is an error."
    return (
        f"{selector}: no reply. Does a queryable or storage serve this key? --target all asks "
        f"all of them; the wait ended after {timeout:g} s (--timeout)."
    )
