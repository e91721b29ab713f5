"""`python -m bench [part ...]`: prints the figures of the named parts, else of all parts."""

import argparse
import importlib
import os
import platform
import sys

PARTS = {
    "start": "imports and first use",
    "wire": "codec, scan, Arrow, and the emitter",
    "keyexpr": "key expressions and the matching tree",
    "session": "sessions between two processes, beside a raw socket and eclipse-zenoh",
    "api": "the session API and the router, beside eclipse-zenoh",
    "shm": "puts through shared memory, beside eclipse-zenoh",
    "log": "recording and reading, beside a plain loop and eclipse-zenoh",
    "replay": "replay at full speed, beside an eclipse-zenoh publisher",
    "capture": "packet captures, beside tshark",
    "spark": "a log on Spark, beside the same rows as Parquet",
    "lake": "from the log to all tables, beside a Spark job by hand; latency and rate",
    "serve": "a lake of ten million rows that answers queries",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    wanted = parser.parse_args().parts or list(PARTS)
    for part in wanted:
        if part not in PARTS:
            parser.error(f"no part {part!r}; there are {', '.join(PARTS)}")
    print_line(
        f"# Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    )
    missed = 0
    for part in wanted:
        print_line(f"# {PARTS[part]}")
        for figure in importlib.import_module(f"bench.{part}").figures():
            print_line(figure.line())
            missed += not figure.met
    if missed:
        print_line(f"# {missed} below the aim")
    return 0


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
