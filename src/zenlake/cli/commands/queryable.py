"""`zenlake queryable`: answer queries with a value, or with their own payload.

Knows options. Does not know sessions: session_options does.
"""

from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import zenlake
from zenlake.cli import payload_input, session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.failure import fail
from zenlake.cli.options import SecondsOption, count_option, json_option
from zenlake.cli.printing import print_line
from zenlake.cli.render.sample import describe_payload, format_line
from zenlake.errors import MessageTooLarge
from zenlake.quantities import counted


@session_options.expand_options
def queryable(
    at: session_options.SessionOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key expression to answer for.")],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            help="Payload of the reply; - reads standard input. Default: the query's own payload, "
            "or its selector if it has none.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Reply with the content of this file."),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="TYPE[;SCHEMA]", help="Encoding of the reply.")
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Declare the queryable complete for its keys.")
    ] = False,
    error: Annotated[
        bool, typer.Option("--error", help="Reply with an error whose payload is VALUE.")
    ] = False,
    count: Annotated[int | None, count_option("queries", endless=True)] = None,
    seconds: SecondsOption = None,
    json: Annotated[bool, json_option("Print one JSON object per query, one per line.")] = False,
) -> None:
    """Answer every query on KEY and show it, until Ctrl-C.

    The reply is on KEY, or on the query's key when KEY has wildcards.

    Exit status: 0 it ended as asked, 1 fewer than --count within --seconds, 2 wrong usage, 130
    Ctrl-C before --count.

    \b
    Examples:
      zenlake queryable -e tcp/127.0.0.1:7447 demo/greeting hello
      zenlake queryable -l tcp/127.0.0.1:7447 'echo/**'
    """
    key = session_options.check_key_expr(key)
    answer = payload_input.read_payload(value, file)
    kind = None if answer is None else payload_input.choose_encoding(value, file, encoding)
    answered = 0
    inbox: CallbackQueue[zenlake.Query] = CallbackQueue()
    with session_options.open_session(at) as session, closing(inbox):
        session.declare_queryable(key, inbox.put, complete=complete)
        with session_options.end_on_interrupt(count):
            for query in inbox.items(count, seconds):
                with query:
                    with suppress(MessageTooLarge):  # Logged; the querier gets an error.
                        _answer(query, key, answer, kind or encoding, as_error=error)
                    answered += 1
                    print_line(_describe_query(query) if json else _format_query(query))
    if count is not None and answered < count:
        fail("queryable", f"only {answered} of {counted(count, 'query')} on {key} in {seconds:g} s")


def _answer(
    query: "zenlake.Query", key: str, answer: bytes | None, encoding: str | None, *, as_error: bool
) -> None:
    if answer is None:
        asked = query.payload
        answer = str(query.selector).encode() if asked is None else bytes(asked)
        encoding = encoding or (payload_input.TEXT if asked is None else str(query.encoding))
    if as_error:
        query.reply_err(answer, encoding=encoding)
    else:
        query.reply(str(query.key_expr) if "*" in key else key, answer, encoding=encoding)


def _describe_query(query: "zenlake.Query") -> dict[str, Any]:
    encoding = None if query.payload is None else str(query.encoding)
    asked = {} if query.payload is None else describe_payload(query.payload, encoding or "")
    return {
        "key": str(query.key_expr),
        "parameters": str(query.parameters),
        "value": None,
        **asked,
        "encoding": encoding,
        "attachment": None if query.attachment is None else describe_payload(query.attachment, ""),
    }


def _format_query(query: "zenlake.Query") -> Any:
    from zenlake.cli.render.text import escape

    data = b"" if query.payload is None else bytes(query.payload)
    encoding = "" if query.payload is None else str(query.encoding)
    notes = [] if query.payload is None else [escape(encoding), counted(len(data), "byte")]
    return format_line("QUERY", str(query.selector), data, encoding, notes)
