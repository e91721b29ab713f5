"""Bursts through shared memory: every sample arrives whole and in order, however it is taken."""

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import zenlake
from tests.golden.proxy import free_port
from tests.support.interop_pair import OURS, THEIRS, open_session
from tests.support.log_recording import payloads
from tests.support.waiting import until
from zenlake.log import Recorder
from zenlake.runtime import kernel_loader
from zenlake.shm.pointers import PointerReader

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("nothing_logged_as_error")]

ON = {"transport/shared_memory/enabled": True, "transport/shared_memory/mode": "init"}
COUNT = 3000
PAUSES = 4
TOGETHER, ALONE = 100, 2  # Puts of which some are read together, or the last one alone.
PAUSE_SECONDS = 0.45
SIZE = 5000
KEY = "shm/burst"
NAMES = {"zenlake": OURS, "eclipse-zenoh": THEIRS}


def payload(number: int) -> bytes:
    return number.to_bytes(4, "little") * (SIZE // 4)


@contextmanager
def sender_to_us(api: Any) -> Iterator[tuple[Any, zenlake.Session]]:
    kernel_loader.load()
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(OURS, "peer", listen=at, settings=ON) as receiver,
        open_session(api, "peer", connect=(at,), settings=ON) as sender,
    ):
        until(lambda: [t.is_shm for t in receiver.info.transports()] == [True])
        yield sender, receiver


def burst(api: Any, session: Any, count: int = COUNT, **options: Any) -> None:
    """Put `count` payloads without a pause, every tenth with an encoding and an attachment."""
    control = api.CongestionControl.BLOCK
    with session.declare_publisher(KEY, congestion_control=control, **options) as publisher:
        until(lambda: publisher.matching_status.matching)
        for number in range(count):
            if number % 10:
                publisher.put(payload(number))
            else:
                publisher.put(payload(number), encoding="text/csv", attachment=b"%d" % number)


def check(number: int, sample: Any) -> None:
    assert sample.payload == payload(number)
    special = number % 10 == 0
    assert str(sample.encoding) == ("text/csv" if special else "zenoh/bytes")
    assert (sample.attachment == b"%d" % number) if special else sample.attachment is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [False, True], ids=["views", "copies"])
def test_callbacks_get_every_sample(
    name: str, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if copied:
        monkeypatch.setenv("ZENLAKE_SHM_COPY", "1")
    found: list[tuple[Any, bool]] = []
    with sender_to_us(NAMES[name]) as (sender, receiver):

        def heard(sample: Any) -> None:
            found.append((pickle.loads(pickle.dumps(sample)), sample.payload.as_shm() is not None))

        with receiver.declare_subscriber(KEY, heard):
            burst(NAMES[name], sender)
            until(lambda: len(found) == COUNT)
            if not copied:  # A sender of eclipse-zenoh is open before it has its pool.
                more = partial(burst, NAMES[name], sender, 1)
                until(lambda: any(shared for _, shared in found), pause=more)
        assert receiver.stats().dropped == {}
    for number, (sample, _) in enumerate(found[:COUNT]):
        check(number, sample)
    assert any(shared for _, shared in found) is not copied


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [False, True], ids=["views", "copies"])
def test_a_reader_that_gets_no_processor_loses_nothing(
    name: str, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender takes back what was not confirmed for 0.2 s, unless it is still on its way."""
    if copied:
        monkeypatch.setenv("ZENLAKE_SHM_COPY", "1")
    found: list[bytes] = []
    paused: dict[str, int] = {"read": 0, "read_one": 0}

    def pause_in(name: str) -> None:
        read = getattr(PointerReader, name)

        def read_and_pause(*arguments: Any) -> Any:
            puts = read(*arguments)
            if puts is not None and paused[name] < PAUSES:
                paused[name] += 1
                time.sleep(PAUSE_SECONDS)
            return puts

        monkeypatch.setattr(PointerReader, name, read_and_pause)

    for reading in paused:
        pause_in(reading)
    with sender_to_us(NAMES[name]) as (sender, receiver):
        with receiver.declare_subscriber(KEY, lambda sample: found.append(bytes(sample.payload))):
            burst(NAMES[name], sender)
            until(lambda: len(found) >= COUNT or receiver.stats().dropped)
            more = partial(burst, NAMES[name], sender, TOGETHER)
            until(lambda: paused["read"] == PAUSES, pause=more)
            if not copied:  # Copies are read together, or decoded.
                alone = partial(burst, NAMES[name], sender, ALONE)
                until(lambda: paused["read_one"] == PAUSES, pause=alone)
            until(lambda: len(found) >= COUNT or receiver.stats().dropped)
        assert receiver.stats().dropped == {}
    assert found[:COUNT] == [payload(number) for number in range(COUNT)]


def test_samples_may_be_kept_and_outlive_the_sender() -> None:
    """The pool is full then, and payloads go over the network; what is kept does not change."""
    kept: list[Any] = []
    with sender_to_us(OURS) as (sender, receiver):
        with receiver.declare_subscriber(KEY, kept.append):
            burst(OURS, sender)
            until(lambda: len(kept) == COUNT)
        sender.close()
        for number, sample in enumerate(kept):
            check(number, sample)
    views = [sample.payload.view for sample in kept]
    kept.clear()
    assert all(bytes(view) == payload(number) for number, view in enumerate(views))


@pytest.mark.parametrize("name", NAMES)
def test_several_subscribers_get_the_samples_of_their_keys(name: str) -> None:
    api, found = NAMES[name], {"a": [0], "b": [0], "*": [0]}
    lock = threading.Lock()
    with sender_to_us(api) as (sender, receiver):
        subscribers = []
        for chunk, count in found.items():

            def heard(sample: Any, chunk: str = chunk, count: list[int] = count) -> None:
                number = int.from_bytes(bytes(sample.payload)[:4], "little")
                expected = KEY + ("/b" if number % 3 == 0 else "/a")
                assert str(sample.key_expr) == expected
                assert sample.payload == payload(number)
                with lock:
                    count[0] += 1

            subscribers.append(receiver.declare_subscriber(f"{KEY}/{chunk}", heard))
        publishers = {
            chunk: sender.declare_publisher(
                f"{KEY}/{chunk}", congestion_control=api.CongestionControl.BLOCK
            )
            for chunk in "ab"
        }
        until(lambda: all(p.matching_status.matching for p in publishers.values()))
        for number in range(COUNT):
            publishers["b" if number % 3 == 0 else "a"].put(payload(number))
        until(lambda: found["*"][0] == COUNT)
        until(lambda: (found["a"][0], found["b"][0]) == (COUNT * 2 // 3, COUNT // 3))
        for entity in (*subscribers, *publishers.values()):
            entity.undeclare()


@pytest.mark.parametrize("name", NAMES)
def test_arrow_batches_get_every_row(name: str) -> None:
    rows: list[bytes] = []
    with sender_to_us(NAMES[name]) as (sender, receiver):
        batches = receiver.declare_subscriber(KEY, OURS.ArrowBatches(max_age=0.05))

        def take() -> None:
            for batch in batches:
                rows.extend(batch.column("payload").to_pylist())

        thread = threading.Thread(target=take)
        thread.start()
        burst(NAMES[name], sender)
        until(lambda: len(rows) == COUNT)
        batches.undeclare()
        thread.join()
    assert rows == [payload(number) for number in range(COUNT)]


def test_a_recorder_gets_every_sample(tmp_path: Path) -> None:
    at = f"tcp/127.0.0.1:{free_port()}"
    config = OURS.Config()
    config.insert_json5("listen/endpoints", f'["{at}"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with (
        Recorder(tmp_path / "log", KEY, config=config) as recorder,
        open_session(THEIRS, "peer", connect=(at,), settings=ON) as sender,
    ):
        burst(THEIRS, sender)
        until(lambda: recorder.stats().durable == COUNT)
    assert payloads(tmp_path / "log") == [payload(number) for number in range(COUNT)]


@pytest.mark.parametrize("name", NAMES)
def test_a_router_of_ours_passes_every_sample_on(name: str) -> None:
    api, found = NAMES[name], []
    at = f"tcp/127.0.0.1:{free_port()}"
    with (
        open_session(OURS, "router", listen=at, settings=ON),
        open_session(api, "client", connect=(at,), settings=ON) as sender,
        open_session(THEIRS, "client", connect=(at,), settings=ON) as receiver,
        receiver.declare_subscriber(KEY, lambda sample: found.append(sample)),
    ):
        burst(api, sender)
        until(lambda: len(found) == COUNT)
        for number, sample in enumerate(found):
            assert bytes(sample.payload) == payload(number)
