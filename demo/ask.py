"""`python -m demo.ask MODULE ENDPOINT SELECTOR ...`: queries a lake with zenlake or zenoh.

One script serves both, because eclipse-zenoh and zenlake have the same API. Prints one JSON line of
replies per query.
"""

import importlib
import json
import sys
from typing import Any

TIMEOUT_SECONDS = 30.0


def main(module: str, endpoint: str, *selectors: str) -> None:
    zenoh = importlib.import_module(module)
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([endpoint]))
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config) as session:
        for selector in selectors:
            replies = [
                describe_reply(reply) for reply in session.get(selector, timeout=TIMEOUT_SECONDS)
            ]
            sys.stdout.write(json.dumps(replies) + "\n")


def describe_reply(reply: Any) -> dict[str, str]:
    if reply.ok is None:
        return {"error": reply.err.payload.to_string()}
    sample = reply.ok
    kind = str(sample.kind).rpartition(".")[2].lower()
    return {"key": str(sample.key_expr), "kind": kind, "payload": sample.payload.to_string()}


if __name__ == "__main__":
    main(*sys.argv[1:])
