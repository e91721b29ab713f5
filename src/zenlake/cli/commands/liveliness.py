"""`zenlake liveliness`: declare, watch and list liveliness tokens.

Knows options. Does not know sessions: session_options does.
"""

from contextlib import closing
from threading import Event
from typing import Annotated

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.failure import fail
from zenlake.cli.options import (
    SecondsOption,
    TimeoutOption,
    command_group,
    count_option,
    json_option,
)
from zenlake.cli.printing import print_line
from zenlake.cli.render.sample import member_name
from zenlake.quantities import counted

ALIVE = {"PUT": True, "DELETE": False}

liveliness = command_group("Declare, watch and list liveliness tokens.")

JsonOption = Annotated[
    bool, json_option("Print one JSON object per token, one per line: key, alive.")
]


@liveliness.command()
@session_options.expand_options
def token(
    at: session_options.SessionOptions,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys to declare tokens on.")],
    seconds: SecondsOption = None,
    json: JsonOption = False,
) -> None:
    """Declare a token on each KEY, until Ctrl-C.

    Exit status: 0 it ended as asked, 1 the session failed, 2 wrong usage.

    \b
    Example:
      zenlake liveliness token -e tcp/127.0.0.1:7447 fleet/robot/1
    """
    checked = [session_options.check_key_expr(key) for key in keys]
    with session_options.open_session(at) as session, session_options.end_on_interrupt(None):
        tokens = [session.liveliness().declare_token(key) for key in checked]
        for key in checked:
            _print(key, True, as_json=json)
        Event().wait(seconds)
        for declared in tokens:
            declared.undeclare()


@liveliness.command()
@session_options.expand_options
def sub(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="Key expressions to watch, such as fleet/**."),
    ],
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Also show the tokens that are alive already."),
    ] = True,
    count: Annotated[int | None, count_option("changes", endless=True)] = None,
    seconds: SecondsOption = None,
    json: JsonOption = False,
) -> None:
    """Show tokens as they appear and disappear, until Ctrl-C.

    Exit status: 0 it ended as asked, 1 fewer than --count within --seconds, 2 wrong usage, 130
    Ctrl-C before --count.

    \b
    Example:
      zenlake liveliness sub -e tcp/127.0.0.1:7447 'fleet/**'
    """
    checked = [session_options.check_key_expr(key) for key in keys]
    received = 0
    inbox: CallbackQueue[zenlake.Sample] = CallbackQueue()
    with session_options.open_session(at) as session, closing(inbox):
        for key in checked:
            session.liveliness().declare_subscriber(key, inbox.put, history=history)
        with session_options.end_on_interrupt(count):
            for sample in inbox.items(count, seconds):
                received += 1
                _print(str(sample.key_expr), ALIVE[member_name(sample.kind)], as_json=json)
    if count is not None and received < count:
        fail("liveliness sub", f"only {received} of {counted(count, 'change')} in {seconds:g} s")


@liveliness.command()
@session_options.expand_options
def get(
    at: session_options.SessionOptions,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Key expression of the tokens, such as fleet/**.")
    ],
    timeout: TimeoutOption = 10.0,
    count: Annotated[int | None, count_option("tokens")] = None,
    json: JsonOption = False,
) -> None:
    """List the tokens that are alive now.

    Exit status: 0 a token is alive, 1 none is, 2 wrong usage.

    \b
    Example:
      zenlake liveliness get -e tcp/127.0.0.1:7447 'fleet/**' --json
    """
    key = session_options.check_key_expr(key)
    received = 0
    with session_options.open_session(at, meet=True) as session:
        for reply in session.liveliness().get(key, timeout=timeout):
            if reply.ok is None:
                continue
            received += 1
            _print(str(reply.ok.key_expr), True, as_json=json)
            if received == count:
                break
    if not received:
        fail("liveliness get", f"no token is alive on {key}. Is the key right?")


def _print(key: str, alive: bool, *, as_json: bool) -> None:
    from rich.text import Text

    from zenlake.cli.render.text import escape

    state = ("alive", "green") if alive else ("gone ", "red")
    text = Text.assemble(state, "  ", (escape(key), "cyan"))
    print_line({"key": key, "alive": alive} if as_json else text)
