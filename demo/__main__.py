"""Command line of `python -m demo`. Exits with 0 if every sample is accounted for."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from demo.child import ChildFailed
from demo.fleet import LEAST
from demo.story import DemoFailed, Options, play
from zenlake.cli.signals import STOP_SIGNALS
from zenlake.errors import ZError

QUICK_ROBOTS, QUICK_SECONDS = LEAST, 15.0
SECONDS = 25.0  # Duration of the drive: the whole demo takes less than a minute.
REPORT = Path(__file__).parent / "report.html"


def options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="A fleet drives; Spark makes tables of it; its past answers over Zenoh.",
    )
    parser.add_argument("--robots", type=int, default=8, help=f"{LEAST} or more (default: 8)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"seconds of driving (default: {SECONDS:.0f})",
    )
    parser.add_argument("--out", type=Path, default=REPORT, help="file of the report")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the lake in this folder")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_ROBOTS} robots, {QUICK_SECONDS:.0f} seconds"
    )
    args = parser.parse_args()
    if args.quick:
        args.robots, args.seconds = QUICK_ROBOTS, QUICK_SECONDS
    if args.robots < LEAST or args.seconds < QUICK_SECONDS:
        parser.error(f"at least {LEAST} robots and {QUICK_SECONDS:.0f} seconds")
    if args.keep is not None and (args.keep / "fleet").exists():
        parser.error(f"{args.keep}/fleet is there already: name another folder")
    return Options(args.robots, args.seconds, args.out.absolute(), args.keep)


def main() -> int:
    chosen = options()
    console = Console(highlight=False)
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        return 0 if play(chosen, console) else 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    except (DemoFailed, ChildFailed, ZError) as error:
        console.print(f"the demo failed: {error}", style="bold red", markup=False)
        return 1


def _interrupt(*_: object) -> NoReturn:
    """Interrupt the demo once; ignore further signals while child processes end."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
