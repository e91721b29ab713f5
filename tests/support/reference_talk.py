"""Sessions of eclipse-zenoh that talk to each other; run as a script, so in another process.

Takes a list of scenarios as JSON, prints for each what was put, deleted, asked and replied.
"""

# mypy: allow-untyped-calls
# zenoh's stubs leave close() and put() without a return type.

import json
import os
import sys
import time
import traceback
from typing import Any

import zenoh

from tests.support.waiting import until

PATIENCE = 20.0
BIG = 150_000
END = "this is the end"
PRIORITIES = (
    *("REAL_TIME", "INTERACTIVE_HIGH", "INTERACTIVE_LOW", "DATA_HIGH"),
    *("DATA", "DATA_LOW", "BACKGROUND"),
)

Said = dict[str, Any]


def session(settings: dict[str, Any]) -> Any:
    config = zenoh.Config()
    values = {
        "mode": "peer",
        "listen/endpoints": [],
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": False,
        **settings,
    }
    for key, value in values.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


def answer(query: Any) -> None:
    query.reply("ask/yes", "a reply")
    query.reply_del("ask/gone")
    query.reply_err("an error", encoding="text/plain")
    query.drop()


def talk(scenario: dict[str, Any]) -> Said:
    """Let one session put, delete and query; the other subscribes and replies."""
    at, name, settings = scenario["at"], scenario["name"], scenario["settings"]
    big = scenario.get("big", BIG)
    got: list[str] = []
    listener = session({**settings, "listen/endpoints": [at]})
    subscriber = listener.declare_subscriber(f"{name}/**", lambda s: got.append(str(s.key_expr)))
    queryable = listener.declare_queryable("ask/**", answer)
    dialler = session({**settings, "connect/endpoints": [at]})
    puts: list[list[Any]] = []

    publishers = {}
    for priority in range(1, 8):
        publisher = dialler.declare_publisher(
            f"{name}/lane/{priority}",
            priority=getattr(zenoh.Priority, PRIORITIES[priority - 1]),
            congestion_control=zenoh.CongestionControl.BLOCK,
            express=priority % 2 == 0,
        )
        publishers[priority] = publisher
        until(lambda: publisher.matching_status.matching)  # noqa: B023 (called at once)
        for i in range(3):
            payload = f"{priority} {i}"
            publisher.put(payload, attachment=b"attached %d" % i, encoding="text/plain;utf8")
            puts.append([f"{name}/lane/{priority}", payload, priority, priority % 2 == 0])
    dialler.put(f"{name}/big", b"x" * big, congestion_control=zenoh.CongestionControl.BLOCK)
    dialler.delete(f"{name}/big", congestion_control=zenoh.CongestionControl.BLOCK)
    replies = []
    for reply in dialler.get("ask/**?wanted=1", payload=b"question", timeout=PATIENCE):
        outcome = reply.ok or reply.err
        kind = str(getattr(outcome, "kind", "err"))
        replies.append([kind, outcome.payload.to_string()])
    token = listener.liveliness().declare_token(f"alive/{name}")
    until(lambda: [*dialler.liveliness().get(f"alive/{name}", timeout=PATIENCE)])
    token.undeclare()
    dialler.put(f"{name}/end", END, congestion_control=zenoh.CongestionControl.BLOCK)
    until(lambda: f"{name}/end" in got)
    said = {
        "name": name,
        "opener": str(dialler.info.zid()),
        "acceptor": str(listener.info.zid()),
        "puts": puts,
        "big": big,
        "replies": sorted(replies),
    }
    subscriber.undeclare()
    queryable.undeclare()
    dialler.close()
    listener.close()
    return said


def scouting(scenario: dict[str, Any]) -> Said:
    settings = {
        "scouting/multicast/enabled": True,
        "scouting/multicast/address": scenario["group"],
        "scouting/multicast/interface": "lo",
        "scouting/multicast/autoconnect": [],
    }
    listener = session({**settings, "listen/endpoints": ["tcp/127.0.0.1:0"]})
    config = zenoh.Config()
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    scout = zenoh.scout(what="peer|router", config=config)
    zid = str(listener.info.zid())
    end = time.monotonic() + PATIENCE
    found = False
    while not found and time.monotonic() < end:
        hello = scout.try_recv()
        found = hello is not None and str(hello.zid) == zid
        time.sleep(0.01)
    scout.stop()
    listener.close()
    return {"name": "scouting", "found": found, "zid": zid}


def main() -> None:
    said = [
        scouting(scenario) if "group" in scenario else talk(scenario)
        for scenario in json.loads(sys.argv[1])
    ]
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
        os._exit(0)
    except Exception:  # noqa: BLE001 (whatever it was)
        traceback.print_exc()
        os._exit(1)  # its sessions would keep this process waiting
