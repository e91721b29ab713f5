"""A child made by fork has sessions of its own; the parent's are left alone, and stay sound."""

import subprocess
import sys
from typing import Any

import pytest

import zenlake
from tests.support.session_pairs import listening
from tests.support.waiting import until

pytestmark = pytest.mark.process

SECONDS = 90.0
# Python 3.12 and newer warn at each fork of a process with threads.
WITHOUT_ADVICE = ["-W", "ignore:This process:DeprecationWarning"]
OPEN = """
import json, os, sys, time
from pathlib import Path
import zenlake

def opened():
    config = zenlake.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")  # no node connects to another one
    config.insert_json5("listen/endpoints", json.dumps(["tcp/127.0.0.1:0"]))
    config.insert_json5("connect/endpoints", json.dumps([sys.argv[1]]))
    session = zenlake.open(config)
    end = time.monotonic() + 30
    while not session.info.peers_zid():
        assert time.monotonic() < end
        time.sleep(0.01)
    return session

def put(session, text):
    publisher = session.declare_publisher("told")
    end = time.monotonic() + 30
    while not publisher.matching_status.matching:
        assert time.monotonic() < end
        time.sleep(0.01)
    publisher.put(text)

def sockets():
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except OSError:
            pass
    return sorted(name for name in found if name.startswith(("socket:", "anon_inode:")))

def refused(call):
    began = time.monotonic()
    try:
        call()
    except zenlake.ZError:
        return time.monotonic() - began < 5
    return False

def watched():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "eventpoll" in os.readlink(f"/proc/self/fd/{fd}"):
                lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
                found.append(sorted(line.split()[1] for line in lines if line.startswith("tfd:")))
        except OSError:
            pass
    return sorted(found)

session = opened()
sub = session.declare_subscriber("a/**")
callback = session.declare_subscriber("a/**", lambda sample: None)
pub = session.declare_publisher("a/b")
querier = session.declare_querier("a/b")
queryable = session.declare_queryable("a/b")
token = session.liveliness().declare_token("parent")
put(session, "parent before")
before = watched()
"""
CHILD_USES_IT = """
child = os.fork()
if child == 0:
    assert sockets() == [], sockets()
    assert session.is_closed()
    assert refused(lambda: session.put("told", "wrong"))
    assert refused(lambda: session.get("a/b"))
    assert refused(lambda: session.declare_subscriber("x"))
    assert refused(lambda: session.declare_publisher("x"))
    assert refused(lambda: session.declare_queryable("x"))
    assert refused(lambda: session.liveliness().declare_token("x"))
    assert refused(lambda: pub.put("wrong"))
    assert refused(lambda: querier.get())
    assert refused(sub.recv)
    assert refused(queryable.recv)
    assert list(sub) == []
    for entity in (sub, callback, pub, querier, queryable, token):
        entity.undeclare()
    session.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert watched() == before, (before, watched())
put(session, "parent after")
assert session.info.peers_zid()
session.close()
"""
CHILD_OPENS_ITS_OWN = """
child = os.fork()
if child == 0:
    with opened() as own:
        assert own.zid() != session.zid()
        put(own, "child")
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert watched() == before
put(session, "parent after")
session.close()
"""
CHILD_FORGETS_ALL = """
import gc
child = os.fork()
if child == 0:
    del session, sub, callback, pub, querier, queryable, token
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert watched() == before
put(session, "parent after")
session.close()
"""
CHILD_OUTLIVES = """
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    os.read(read, 1)
    os._exit(0)
put(session, "parent after")
session.close()
again = opened()
put(again, "parent again")
again.close()
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
MANY = """
import multiprocessing

def work(number):
    with opened() as own:
        put(own, f"worker {number}")

context = multiprocessing.get_context("fork")
workers = [context.Process(target=work, args=(number,)) for number in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(60)
    assert worker.exitcode == 0
assert watched() == before
put(session, "parent after")
session.close()
"""


def told_by(script: str) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return the puts of a program of `script`, and the transport events of its peer."""
    session, port = listening()
    with session:
        told: list[str] = []
        events: list[tuple[str, Any]] = []
        session.declare_subscriber("told", lambda sample: told.append(str(sample.payload)))
        listener = session.info.declare_transport_events_listener(
            lambda event: events.append((event.kind.name, event.transport.zid))
        )
        done = subprocess.run(
            [sys.executable, *WITHOUT_ADVICE, "-c", OPEN + script, f"tcp/127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        until(lambda: not session.info.peers_zid())
        until(lambda: len(events) % 2 == 0)
        listener.undeclare()
    return told, events


def opened_and_closed(events: list[tuple[str, zenlake.ZenohId]], transports: int) -> bool:
    """Whether each of them opened once and closed once, the parent's first and last."""
    zids = {zid for _, zid in events}
    return (
        len(zids) == transports
        and len(events) == 2 * transports
        and events[0] == ("PUT", events[-1][1])
        and events[-1][0] == "DELETE"
    )


def test_a_child_that_uses_the_parent_s_session_is_told_so() -> None:
    told, events = told_by(CHILD_USES_IT)
    assert told == ["parent before", "parent after"]
    assert opened_and_closed(events, 1)


def test_a_child_opens_its_own_session() -> None:
    told, events = told_by(CHILD_OPENS_ITS_OWN)
    assert told == ["parent before", "child", "parent after"]
    assert opened_and_closed(events, 2)


def test_a_child_that_lets_go_of_everything_says_nothing() -> None:
    told, events = told_by(CHILD_FORGETS_ALL)
    assert told == ["parent before", "parent after"]
    assert opened_and_closed(events, 1)


def test_a_child_that_lives_on_does_not_keep_the_parent_s_links_open() -> None:
    told, events = told_by(CHILD_OUTLIVES)
    assert told == ["parent before", "parent after", "parent again"]
    assert [kind for kind, _ in events] == ["PUT", "DELETE", "PUT", "DELETE"]


def test_workers_made_by_fork() -> None:
    told, events = told_by(MANY)
    assert told[0] == "parent before"
    assert sorted(told[1:4]) == ["worker 0", "worker 1", "worker 2"]
    assert told[4:] == ["parent after"]
    assert opened_and_closed(events, 4)
