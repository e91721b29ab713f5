"""Common code of the examples: the options of a session, and a quiet end on Ctrl-C."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any


def make_parser(about: str | None, key: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the options of every example; `key` is the default of `--key`."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "-m", "--mode", choices=["peer", "client", "router"], help="role of the session"
    )
    parser.add_argument(
        "-e",
        "--connect",
        action="append",
        metavar="ENDPOINT",
        help="endpoint to connect to, e.g. tcp/10.0.0.1:7447",
    )
    parser.add_argument(
        "-l",
        "--listen",
        action="append",
        metavar="ENDPOINT",
        help="endpoint to listen on, e.g. tcp/0.0.0.0:7447",
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file")
    parser.add_argument(
        "--cfg",
        action="append",
        metavar="PATH:VALUE",
        help="setting, e.g. timestamping/enabled:true",
    )
    parser.add_argument(
        "--no-multicast-scouting", action="store_true", help="do not scout by multicast"
    )
    if key is not None:
        parser.add_argument("-k", "--key", default=key, help="key expression")
    return parser


def make_config(config_class: Any, args: argparse.Namespace) -> Any:
    """Return the configuration that the options ask for."""
    config = config_class.from_file(args.config) if args.config else config_class()
    if args.mode:
        config.insert_json5("mode", json.dumps(args.mode))
    if args.connect:
        config.insert_json5("connect/endpoints", json.dumps(args.connect))
    if args.listen:
        config.insert_json5("listen/endpoints", json.dumps(args.listen))
    if args.no_multicast_scouting:
        config.insert_json5("scouting/multicast/enabled", "false")
    for setting in args.cfg or ():
        path, _, value = setting.partition(":")
        config.insert_json5(path, value)
    return config


def run(main: Callable[[], None]) -> None:
    """Run `main` until it returns or Ctrl-C."""
    try:
        main()
    except KeyboardInterrupt:
        say("stopped")


def say(*words: object) -> None:
    """Print a line at once, into a pipe too, and safely from several threads."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
