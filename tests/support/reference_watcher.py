"""A process of eclipse-zenoh that says what happens to it, one line each, and does no more.

reference_watcher.py ENDPOINT KEY: a queryable on KEY that keeps every query without an answer, and
a liveliness token on KEY, until it is killed or its input is closed.
"""

# mypy: allow-untyped-calls

import json
import sys

import zenoh


def main(endpoint: str, key: str) -> None:
    config = zenoh.Config()
    for name, value in (
        ("mode", "client"),
        ("connect/endpoints", [endpoint]),
        ("scouting/multicast/enabled", False),
    ):
        config.insert_json5(name, json.dumps(value))
    kept: list[zenoh.Query] = []

    def keep(query: zenoh.Query) -> None:
        kept.append(query)
        _say("asked")

    with zenoh.open(config) as session:
        kept_too = session.declare_queryable(key, keep), session.liveliness().declare_token(key)
        _say("ready")
        sys.stdin.read()
        del kept_too


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
