"""A program ends whatever it left open, and its peers hear a goodbye."""

import logging
import subprocess
import sys
import time

import pytest

from tests.support.session_pairs import listening
from tests.support.waiting import until

pytestmark = pytest.mark.process

SECONDS = 60.0
OPEN = """
import json, sys, threading, time
import zenlake
config = zenlake.Config()
config.insert_json5("scouting/multicast/enabled", "false")
config.insert_json5("listen/endpoints", "[]")
config.insert_json5("connect/endpoints", json.dumps([sys.argv[1]]))
session = zenlake.open(config)
deadline = time.monotonic() + 30
while not session.info.peers_zid() and time.monotonic() < deadline:
    time.sleep(0.01)
"""
ENDS = {
    "nothing but the session": "",
    "a callback subscriber": "sub = session.declare_subscriber('a/**', print)",
    "one that nothing holds": "session.declare_subscriber('a/**', print)",
    "a callback that was called": """
called = threading.Event()
sub = session.declare_subscriber('a/**', lambda sample: called.set())
session.put('a/b', 'x')
assert called.wait(30)
""",
    "a full queue": """
sub = session.declare_subscriber('flood', zenlake.handlers.FifoChannel(2))
sub.recv()
""",
    "a callback that never returns": """
inside = threading.Event()
def stuck(sample):
    inside.set()
    threading.Event().wait()
sub = session.declare_subscriber('flood', stuck)
assert inside.wait(30)
""",
    "all kinds": """
held = [
    session.declare_queryable('q', lambda query: None),
    session.declare_publisher('p').declare_matching_listener(print),
    session.liveliness().declare_token('t'),
    session.liveliness().declare_subscriber('t', print, history=True),
    session.get('nobody/**'),
    session.info.declare_transport_events_listener(print, history=True),
    zenlake.ext.declare_advanced_subscriber(session, 'adv', print),
    zenlake.ext.declare_advanced_publisher(
        session,
        'adv',
        cache=zenlake.ext.CacheConfig(1),
        sample_miss_detection=zenlake.ext.MissDetectionConfig(heartbeat=0.1),
    ),
]
""",
    "a lock that a thread took and never released": """
from zenlake.ext.periodic import SCHEDULER
detection = zenlake.ext.MissDetectionConfig(heartbeat=30.0)
held = zenlake.ext.declare_advanced_publisher(session, 'adv', sample_miss_detection=detection)
holder = threading.Thread(target=SCHEDULER._changed.acquire)
holder.start()
holder.join()
""",
    "a cycle": """
class Held: pass
held = Held()
held.held, held.session, held.sub = held, session, session.declare_subscriber('a', print)
del session
""",
}


class Goodbyes(logging.Handler):
    """Why sessions ended, as the runtime tells."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if " ended: " in text:
            self.said.append(text)


@pytest.fixture
def goodbyes() -> "Goodbyes":
    return Goodbyes()


def ended_well(goodbyes: Goodbyes, script: str, status: int = 0) -> str:
    """Return the stderr of a program of `script`; it must end, and say goodbye on its link."""
    log = logging.getLogger("zenlake.runtime")
    level = log.level
    log.addHandler(goodbyes)
    log.setLevel(logging.INFO)
    try:
        session, port = listening()
        with session:
            done = subprocess.Popen(
                [sys.executable, "-c", OPEN + script, f"tcp/127.0.0.1:{port}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            with done:
                flood = session.declare_publisher("flood")
                end = time.monotonic() + SECONDS
                while done.poll() is None:
                    flood.put(bytes(1000))
                    time.sleep(0.001)
                    if time.monotonic() > end:
                        done.kill()
                assert done.stderr is not None
                said = done.stderr.read()
            assert done.returncode == status, said
            until(lambda: goodbyes.said)
    finally:
        log.removeHandler(goodbyes)
        log.setLevel(level)
    assert "the peer closed with reason 0" in goodbyes.said[0]
    return said


@pytest.mark.parametrize("left", ENDS)
def test_a_program_may_end_and_leave_open(goodbyes: Goodbyes, left: str) -> None:
    assert ended_well(goodbyes, ENDS[left]) == ""


def test_a_program_that_fails_ends_with_its_own_error(goodbyes: Goodbyes) -> None:
    script = "session.declare_subscriber('a', print)\nraise ValueError('its own')"
    said = ended_well(goodbyes, script, status=1)
    assert said.rstrip().endswith("ValueError: its own")
    assert said.count("Traceback") == 1


def test_a_program_that_says_how_it_exits(goodbyes: Goodbyes) -> None:
    script = "session.declare_subscriber('a', print)\nsys.exit(7)"
    assert ended_well(goodbyes, script, status=7) == ""


def test_a_closed_session_is_not_closed_again(goodbyes: Goodbyes) -> None:
    assert ended_well(goodbyes, "session.close()") == ""
    assert len(goodbyes.said) == 1
