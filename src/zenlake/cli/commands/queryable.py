"""`zenlake queryable`: answer queries, with a value or with what was asked."""

from pathlib import Path
from typing import Annotated, Any

import typer

import zenlake
from zenlake.cli import payload_input, session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.quantities import counted
from zenlake.cli.render.sample import content, line_text, print_object, print_text, size_text

MAX_SECONDS = 86_400.0


@session_options.connected
def queryable(
    at: session_options.SessionOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key expression to answer for.")],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE",
            help="The answer; - is standard input. Without: the query's own payload, or its "
            "selector if it has none.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="The answer is this file.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="TYPE[;SCHEMA]", help="What the answer is.")
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Say that nobody else is needed for these keys.")
    ] = False,
    error: Annotated[
        bool, typer.Option("--error", help="Answer with an error that holds VALUE.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after so many queries. Default: Ctrl-C."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=MAX_SECONDS, help="End after this time.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object a query, one a line.")
    ] = False,
) -> None:
    """Answer every query on KEY, and show it; Ctrl-C ends it.

    The reply is on KEY, or on the query's key when KEY has wildcards.

    Exit status: 0 it ended as asked, 1 fewer than --count in --seconds, 2 wrong usage, 130 Ctrl-C
    before --count.

    \b
    Examples:
      zenlake queryable -e tcp/127.0.0.1:7447 demo/greeting hello
      zenlake queryable -l tcp/127.0.0.1:7447 'echo/**'
    """
    key = session_options.key_expr(key)
    answer = payload_input.payload(value, file)
    kind = None if answer is None else payload_input.encoding_of(value, file, encoding)
    answered = 0
    inbox: CallbackQueue[zenlake.Query] = CallbackQueue()
    with session_options.opened(at) as session, inbox:
        session.declare_queryable(key, inbox.put, complete=complete)
        with session_options.until_interrupted(count):
            for query in inbox.items(count, seconds):
                with query:
                    _answer(query, key, answer, kind or encoding, as_error=error)
                    answered += 1
                    if json:
                        print_object(_object(query))
                    else:
                        print_text(_line(query))
    if count is not None and answered < count:
        session_options.fail(
            "queryable", f"only {answered} of {counted(count, 'query')} on {key} in {seconds:g} s"
        )


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


def _object(query: "zenlake.Query") -> dict[str, Any]:
    encoding = None if query.payload is None else str(query.encoding)
    asked = {} if query.payload is None else content(query.payload, encoding or "")
    return {
        "key": str(query.key_expr),
        "parameters": str(query.parameters),
        "value": None,
        **asked,
        "encoding": encoding,
        "attachment": None if query.attachment is None else content(query.attachment, ""),
    }


def _line(query: "zenlake.Query") -> Any:
    from zenlake.cli.render.text import escape

    data = b"" if query.payload is None else bytes(query.payload)
    encoding = "" if query.payload is None else str(query.encoding)
    said = [] if query.payload is None else [escape(encoding), size_text(len(data))]
    return line_text("QUERY", str(query.selector), data, encoding, said)
