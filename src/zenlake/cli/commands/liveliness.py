"""`zenlake liveliness`: be alive, and see who is."""

import time
from typing import Annotated

import typer

import zenlake
from zenlake.cli import session_options
from zenlake.cli.callback_queue import CallbackQueue
from zenlake.cli.render.sample import print_object, print_text, word

MAX_SECONDS = 86_400.0
LONGEST_NAP = 3600.0
ALIVE = {"PUT": True, "DELETE": False}

liveliness = typer.Typer(
    help="Say that you are alive, and see who is.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SecondsOption = Annotated[
    float | None, typer.Option(min=0.1, max=MAX_SECONDS, help="End after this time.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON object a key, one a line: key, alive.")
]


@liveliness.command()
@session_options.connected
def token(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="The keys to be alive under.")
    ],
    seconds: SecondsOption = None,
    json: JsonOption = False,
) -> None:
    """Hold a token for each KEY; Ctrl-C ends it, and all who watch are told.

    Exit status: 0 it ended as asked, 1 the session failed, 2 wrong usage.

    \b
    Example:
      zenlake liveliness token -e tcp/127.0.0.1:7447 fleet/robot/1
    """
    checked = [session_options.key_expr(key) for key in keys]
    with session_options.opened(at) as session, session_options.until_interrupted(None):
        tokens = [session.liveliness().declare_token(key) for key in checked]
        for key in checked:
            _show(key, True, as_json=json)
        end = time.monotonic() + (MAX_SECONDS if seconds is None else seconds)
        while seconds is None or time.monotonic() < end:
            time.sleep(LONGEST_NAP if seconds is None else max(0.0, end - time.monotonic()))
        for held in tokens:
            held.undeclare()


@liveliness.command()
@session_options.connected
def sub(
    at: session_options.SessionOptions,
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Whom to watch, such as fleet/**.")
    ],
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Show those that are alive already.")
    ] = True,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after so many changes. Default: Ctrl-C."),
    ] = None,
    seconds: SecondsOption = None,
    json: JsonOption = False,
) -> None:
    """Show who comes and who goes; Ctrl-C ends it.

    Exit status: 0 it ended as asked, 1 fewer than --count in --seconds, 2 wrong usage, 130 Ctrl-C
    before --count.

    \b
    Example:
      zenlake liveliness sub -e tcp/127.0.0.1:7447 'fleet/**'
    """
    checked = [session_options.key_expr(key) for key in keys]
    came = 0
    inbox: CallbackQueue[zenlake.Sample] = CallbackQueue()
    with session_options.opened(at) as session, inbox:
        for key in checked:
            session.liveliness().declare_subscriber(key, inbox.put, history=history)
        with session_options.until_interrupted(count):
            for sample in inbox.items(count, seconds):
                came += 1
                _show(str(sample.key_expr), ALIVE[word(sample.kind)], as_json=json)
    if count is not None and came < count:
        session_options.fail("liveliness sub", f"only {came} of {count} changes in {seconds:g} s")


@liveliness.command()
@session_options.connected
def get(
    at: session_options.SessionOptions,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Whom to ask for, such as fleet/**.")],
    timeout: Annotated[
        float, typer.Option(min=0.01, max=MAX_SECONDS, help="Seconds to wait for answers.")
    ] = 10.0,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show who is alive now.

    Exit status: 0 somebody is, 1 nobody is, 2 wrong usage.

    \b
    Example:
      zenlake liveliness get -e tcp/127.0.0.1:7447 'fleet/**' --json
    """
    key = session_options.key_expr(key)
    came = 0
    with session_options.opened(at, meet=True) as session:
        for reply in session.liveliness().get(key, timeout=timeout):
            if reply.ok is None:
                continue
            came += 1
            _show(str(reply.ok.key_expr), True, as_json=json)
            if came == count:
                break
    if not came:
        session_options.fail("liveliness get", f"nobody is alive on {key}. Is the key right?")


def _show(key: str, alive: bool, *, as_json: bool) -> None:
    from rich.text import Text

    from zenlake.cli.render.text import escape

    if as_json:
        print_object({"key": key, "alive": alive})
    else:
        state = ("alive", "green") if alive else ("gone ", "red")
        print_text(Text.assemble(state, "  ", (escape(key), "cyan")))
