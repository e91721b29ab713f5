"""Sinks: order, limits, back-pressure, callbacks and their threads, closing."""

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest
import zenoh

from tests.support.waiting import until
from zenlake import handlers
from zenlake.api.handlers import (
    FIFO_ITEMS,
    Callback,
    DefaultHandler,
    FifoChannel,
    Handler,
    Receiver,
    RingChannel,
    make_sink,
)
from zenlake.api.sinks import CALLBACK_ITEMS, Sink
from zenlake.api.values.wrapped import make
from zenlake.errors import ZError

SECONDS = 30.0


def push(sink: Sink[Any], *items: object) -> bool:
    return sink.push(iter(items), len(items))


def finish(sink: Sink[Any]) -> None:
    sink.close()
    assert sink.join(SECONDS)


def fail() -> None:
    invert(0)


def invert(number: int) -> int:
    return 1 // number


class Thread(threading.Thread):
    """Keeps what its call gave or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.call()
        except ZError as problem:
            self.result = problem

    def wait(self) -> object:
        self.join(SECONDS)
        assert not self.is_alive()
        return self.result


def waits_for_room(sink: Any) -> bool:
    return bool(sink._blocked)


def blocked_in_recv(handler: Handler[Any], readers: int = 1) -> bool:
    channel: Any = handler._channel
    condition: Any = channel.__dict__.get("_ready")
    return condition is not None and len(condition._waiters) == readers


# What may be given -------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, DefaultHandler(), FifoChannel(3), RingChannel(3)])
def test_a_channel_has_a_handler_and_is_not_in_the_background(given: object) -> None:
    sink, handler, background = make_sink(given, "test")
    assert isinstance(handler, Handler)
    assert not background
    push(sink, 1, 2, 3)
    assert [handler.recv(), handler.try_recv(), handler.recv()] == [1, 2, 3]
    assert handler.try_recv() is None


@pytest.mark.parametrize("given", [print, Callback(print), Callback(print, indirect=False)])
def test_a_callback_is_in_the_background(given: object) -> None:
    sink, handler, background = make_sink(given, "test")
    assert (handler, background) == (None, True)
    finish(sink)


def test_a_tuple_is_a_callback_and_what_reads_it() -> None:
    got: list[int] = []
    sink, handler, background = make_sink((got.append, got), "test")
    assert handler is got
    assert not background
    push(sink, 1, 2)
    finish(sink)
    assert got == [1, 2]


def test_a_tuple_may_hold_a_callback_with_drop() -> None:
    got: list[object] = []
    sink, handler, _ = make_sink((Callback(got.append, lambda: got.append("end")), "x"), "test")
    assert handler == "x"
    push(sink, 1)
    finish(sink)
    assert got == [1, "end"]


def test_the_old_form_with_a_drop_callback_warns() -> None:
    with pytest.warns(UserWarning, match="^Passing drop-callback") as caught:
        sink, handler, _ = make_sink((print, print), "test")
    assert len(caught) == 1
    assert handler is print
    finish(sink)


def test_a_sink_of_ones_own_is_taken_as_it_is() -> None:
    class Own(Sink[int]):
        pass

    own = Own()
    assert make_sink(own, "test") == (own, None, False)


@pytest.mark.parametrize(
    "given",
    [5, "abc", b"x", [print, 1], (), (print,), (print, 1, 2), (5, 5), (None, print), object()],
)
def test_anything_else_is_refused_as_the_reference_does(
    given: object, reference: zenoh.Session
) -> None:
    with pytest.raises(ValueError, match="Invalid handler type") as theirs:
        reference.declare_subscriber("a", given)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="Invalid handler type") as ours:
        make_sink(given, "test")
    assert str(ours.value) == str(theirs.value)


@pytest.fixture(scope="module")
def reference() -> Iterator[zenoh.Session]:
    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("listen/endpoints", "[]")
    with zenoh.open(config) as session:
        yield session


@pytest.mark.parametrize("capacity", [-1, 1 << 70, "a", 2.0, None])
@pytest.mark.parametrize("name", ["FifoChannel", "RingChannel"])
def test_a_capacity_is_refused_as_the_reference_does(name: str, capacity: Any) -> None:
    with pytest.raises((OverflowError, TypeError)) as theirs:
        getattr(zenoh.handlers, name)(capacity)
    with pytest.raises(theirs.type) as ours:
        getattr(handlers, name)(capacity)
    if theirs.type is OverflowError:
        assert str(ours.value) == str(theirs.value)


def test_what_is_given_is_a_value() -> None:
    values = [FifoChannel(1), FifoChannel(2), RingChannel(1), DefaultHandler(), Callback(print)]
    assert len(set(values)) == 5
    for value in values:
        assert pickle.loads(pickle.dumps(value)) == value
    assert FifoChannel(capacity=3).capacity == 3
    assert values[0] != values[2]
    assert FifoChannel[int](1) == FifoChannel(1)
    assert Callback(callback=len, drop=None, indirect=False).indirect is False
    assert repr(Callback(len)) == "Callback(<built-in function len>, None, indirect=True)"
    assert Callback(len)("abc") == 3


def test_only_what_can_be_called_is_a_callback() -> None:
    with pytest.raises(TypeError, match="'int' object is not callable"):
        Callback(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="drop: 'int' object is not callable"):
        Callback(print, 5)  # type: ignore[arg-type]


def test_the_public_module_has_all_the_names() -> None:
    assert set(handlers.__all__) == {*dir(zenoh.handlers)} - {"__all__"} - {
        name for name in dir(zenoh.handlers) if name.startswith("_")
    }


# Fifo --------------------------------------------------------------------------------------------


def test_a_fifo_makes_an_item_when_it_is_read() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return -number

    sink, handler, _ = make_sink(None, "test")
    sink.push(map(make, range(3)), 3)
    assert made == []
    assert handler.recv() == 0
    assert made == [0]
    assert [handler.recv(), handler.recv()] == [-1, -2]


def test_a_fifo_takes_all_and_says_when_it_is_full() -> None:
    sink, handler, _ = make_sink(FifoChannel(4), "test")
    assert push(sink, 0, 1, 2) is True
    assert push(sink, 3) is False
    assert push(sink, *range(4, 100)) is False
    assert [handler.recv() for _ in range(100)] == list(range(100))
    assert push(sink, 1) is True
    assert sink.dropped == 0


def test_the_default_fifo_holds_256() -> None:
    sink, handler, _ = make_sink(None, "test")
    assert FIFO_ITEMS == 256
    assert push(sink, *range(255)) is True
    assert push(sink, 255) is False
    assert handler.recv() == 0


@pytest.mark.parametrize("capacity", [0, 1])
def test_the_smallest_fifo_holds_one(capacity: int) -> None:
    sink, handler, _ = make_sink(FifoChannel(capacity), "test")
    room: list[int] = []
    sink.when_room(lambda: room.append(0))
    assert room == [0]
    assert push(sink, 1) is False
    sink.when_room(lambda: room.append(1))
    assert room == [0]
    assert handler.recv() == 1
    assert room == [0, 1]


def test_room_is_told_once_and_below_half() -> None:
    sink, handler, _ = make_sink(FifoChannel(10), "test")
    told: list[str] = []

    def call() -> None:
        told.append("room")

    assert push(sink, *range(10)) is False
    sink.when_room(call)
    sink.when_room(call)  # the same: told once
    for _ in range(5):
        handler.recv()
    assert told == []
    handler.try_recv()
    assert told == ["room"]
    assert [handler.recv() for _ in range(4)] == [6, 7, 8, 9]
    assert told == ["room"]
    sink.when_room(call)
    assert told == ["room", "room"]


def test_closing_makes_room() -> None:
    sink, handler, _ = make_sink(FifoChannel(1), "test")
    told: list[str] = []
    push(sink, 1, 2)
    sink.when_room(lambda: told.append("room"))
    waiting = Thread(sink.wait_room)
    until(lambda: waits_for_room(sink))
    sink.close()
    waiting.wait()
    assert told == ["room"]
    sink.when_room(lambda: told.append("closed"))
    assert told == ["room", "closed"]
    assert list(handler) == [1, 2]


def test_what_tells_of_room_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    sink, handler, _ = make_sink(FifoChannel(1), "test")
    told: list[int] = []
    push(sink, 1)
    sink.when_room(fail)
    sink.when_room(lambda: told.append(1))
    assert handler.recv() == 1
    assert told == [1]
    assert "ZeroDivisionError" in caplog.text


def test_wait_room_waits_until_one_was_read() -> None:
    sink, handler, _ = make_sink(FifoChannel(2), "test")
    sink.wait_room()
    push(sink, 1, 2)
    waiting = Thread(sink.wait_room)
    until(lambda: waits_for_room(sink))
    assert waiting.is_alive()
    assert handler.recv() == 1
    waiting.wait()


def test_what_waits_is_delivered_after_close() -> None:
    sink, handler, _ = make_sink(None, "test")
    push(sink, 1, 2)
    sink.close()
    sink.close()
    assert sink.push(iter([3]), 1) is True
    assert sink.dropped == 1
    assert handler.recv() == 1
    assert handler.try_recv() == 2
    for take in (handler.recv, handler.try_recv):
        with pytest.raises(ZError, match=r"^channel is empty and closed$"):
            take()
    assert list(handler) == []


def test_recv_wakes_for_an_item_and_for_close() -> None:
    sink, handler, _ = make_sink(None, "test")
    threads = [Thread(handler.recv) for _ in range(3)]
    until(lambda: blocked_in_recv(handler, 3))
    push(sink, "a", "b")
    until(lambda: sum(not thread.is_alive() for thread in threads) == 2)
    sink.close()
    results = [thread.wait() for thread in threads]
    assert {r for r in results if isinstance(r, str)} == {"a", "b"}
    assert [str(r) for r in results if isinstance(r, ZError)] == ["channel is empty and closed"]


@pytest.mark.parametrize("given", [FifoChannel(64), RingChannel(1_000_000)])
def test_many_threads_read_and_push(given: object) -> None:
    sink, handler, _ = make_sink(given, "test")
    readers = [Thread(lambda: list(handler)) for _ in range(4)]
    each, chunk = 500, 7

    def write(first: int) -> None:
        for start in range(first, first + each * chunk, chunk):
            sink.push(map(int, range(start, start + chunk)), chunk)
            sink.wait_room()

    writers = [Thread(lambda n=n: write(n * each * chunk)) for n in range(4)]  # type: ignore[misc]
    for writer in writers:
        writer.wait()
    until(lambda: not (getattr(sink, "_waiting", 0) or getattr(sink, "_items", ())))
    sink.close()
    got: list[int] = []
    for reader in readers:
        part = reader.wait()
        assert isinstance(part, list)
        got += part
    assert sorted(got) == list(range(4 * each * chunk))
    assert sink.dropped == 0


def test_an_item_that_cannot_be_made_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    sink, handler, _ = make_sink(None, "test")
    sink.push(map(invert, [1, 0, -1]), 3)
    assert [handler.recv(), handler.recv()] == [1, -1]
    assert sink.dropped == 1
    assert "an item could not be made" in caplog.text
    assert handler.try_recv() is None


def test_nothing_may_be_pushed() -> None:
    given: object
    for given in (FifoChannel(1), RingChannel(1)):
        sink, handler, _ = make_sink(given, "test")
        assert push(sink) is True
        push(sink, 1)
        assert [handler.recv(), handler.try_recv()] == [1, None]
        assert sink.dropped == 0


def test_fewer_items_than_said_do_no_harm() -> None:
    sink, handler, _ = make_sink(FifoChannel(4), "test")
    sink.push(iter([1]), 100)
    sink.push(iter([2]), 1)
    assert [handler.recv(), handler.recv(), handler.try_recv()] == [1, 2, None]
    assert push(sink, 3) is True


class Item:
    pass


@pytest.mark.parametrize("make", [list, tuple])
@pytest.mark.parametrize("given", [FifoChannel(8), RingChannel(8)])
def test_an_item_that_was_read_is_not_kept(
    given: object, make: Callable[[list[Item]], Iterable[Item]]
) -> None:
    sink, handler, _ = make_sink(given, "test")
    items = [Item(), Item(), Item()]
    refs = list(map(weakref.ref, items))
    sink.push(make([*items]), 3)
    del items
    for taken in range(1, 4):
        handler.recv()
        assert [ref() is None for ref in refs] == [n < taken for n in range(3)]


def test_a_handler_that_nobody_holds_lets_everything_go() -> None:
    sink, handler, _ = make_sink(FifoChannel(1), "test")
    item = Item()
    gone = weakref.ref(item)
    told: list[int] = []
    sink.push([item], 1)
    sink.when_room(lambda: told.append(1))
    del item, handler
    gc.collect()
    assert gone() is None
    assert told == [1]
    assert push(sink, 1, 2) is True
    assert sink.dropped == 3


@pytest.mark.process
def test_ctrl_c_ends_recv() -> None:
    ended = run(
        "import os, signal, threading, time\n"
        "from zenlake.api.handlers import make_sink\n"
        "sink, handler, _ = make_sink(None, 'x')\n"
        "def interrupt():\n"
        "    while not sink._readers: time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try: handler.recv()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "sink.push([1], 1)\n"
        "print(handler.recv())\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n1\n", "")


# Ring --------------------------------------------------------------------------------------------


def test_a_ring_keeps_the_last_and_counts_the_others() -> None:
    sink, handler, _ = make_sink(RingChannel(3), "test")
    assert push(sink, 0, 1) is True
    assert push(sink, *range(2, 10)) is True
    assert sink.dropped == 7
    assert [handler.recv(), handler.try_recv(), handler.recv()] == [7, 8, 9]
    sink.wait_room()
    told: list[int] = []
    sink.when_room(lambda: told.append(1))
    assert told == [1]
    assert sink.join(0)


def test_items_pushed_out_of_a_ring_end_without_its_lock() -> None:
    free: list[bool] = []

    class Ending:
        def __del__(self) -> None:
            other = Thread(lambda: ring._ready.acquire(timeout=SECONDS) and ring._ready.release())
            other.join(SECONDS)
            free.append(not other.is_alive())

    sink, handler, _ = make_sink(RingChannel(1), "test")
    ring: Any = sink
    sink.push(map(lambda kind: kind(), repeat(Ending, 2)), 2)  # noqa: C417
    sink.push(map(lambda kind: kind(), repeat(Ending, 1)), 1)  # noqa: C417
    sink.close()
    assert free == [True, True, True]
    assert sink.dropped == 3
    assert list(handler) == []


def test_a_ring_of_zero_holds_one() -> None:
    sink, handler, _ = make_sink(RingChannel(0), "test")
    push(sink, 1, 2)
    assert handler.try_recv() == 2
    assert handler.try_recv() is None


def test_a_closed_ring_loses_what_it_held() -> None:
    sink, handler, _ = make_sink(RingChannel(3), "test")
    reader = Thread(make_sink(RingChannel(1), "other")[1].recv)  # one that goes on waiting
    push(sink, 1, 2)
    sink.close()
    for take in (handler.recv, handler.try_recv):
        with pytest.raises(ZError, match=r"^The ringbuffer has been deleted\.$"):
            take()
    assert list(handler) == []
    push(sink, 3)
    assert sink.dropped == 3
    reader.call.__self__._channel.close()  # type: ignore[attr-defined]
    assert str(reader.wait()) == "The ringbuffer has been deleted."


def test_a_ring_goes_on_behind_an_item_that_cannot_be_made() -> None:
    sink, handler, _ = make_sink(RingChannel(3), "test")
    sink.push(map(invert, [1, 0, -1]), 3)
    assert [handler.recv(), handler.recv(), handler.try_recv()] == [1, -1, None]
    assert sink.dropped == 1


# Callbacks ---------------------------------------------------------------------------------------


def test_callbacks_come_in_order_on_one_thread_that_has_a_name() -> None:
    got: list[tuple[int, threading.Thread]] = []
    sink, _, _ = make_sink(lambda x: got.append((x, threading.current_thread())), "my name")
    before = threading.active_count()
    assert threading.active_count() == before  # the thread comes with the first item
    for start in range(0, 1000, 10):
        assert sink.push(map(int, range(start, start + 10)), 10)
    finish(sink)
    assert [number for number, _ in got] == list(range(1000))
    (thread,) = {thread for _, thread in got}
    assert thread.name == "my name"
    assert thread.daemon
    assert thread is not threading.current_thread()


def test_no_item_no_thread() -> None:
    before = threading.active_count()
    sink, _, _ = make_sink(print, "test")
    assert threading.active_count() == before
    finish(sink)
    assert threading.active_count() == before


def test_a_callback_that_raises_is_logged_and_delivery_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[float] = []

    class Outcome(BaseException):
        pass

    def callback(number: int) -> None:
        if number == 3:
            sys.exit("no")
        if number == 4:
            raise Outcome
        if number == 5:
            raise KeyboardInterrupt
        got.append(1 / number)

    sink, _, _ = make_sink(callback, "test")
    push(sink, 1, 0, 2, 3, 4, 5, 0)
    push(sink, 4, 1)
    finish(sink)
    assert got == [1, 0.5, 1]
    records = [r for r in caplog.records if r.name == "zenlake.handlers"]
    assert [r.getMessage() for r in records] == ["callback error"] * 6
    assert all(r.levelno == logging.ERROR and r.exc_info for r in records)


@pytest.mark.parametrize("items", [0, 3])
@pytest.mark.parametrize("indirect", [True, False])
def test_drop_comes_once_and_last(items: int, indirect: bool) -> None:
    got: list[object] = []
    sink, _, _ = make_sink(Callback(got.append, lambda: got.append("end"), indirect=indirect), "t")
    push(sink, *range(items))
    finish(sink)
    finish(sink)
    push(sink, 7)
    assert got == [*range(items), "end"]
    assert sink.dropped == 1


def test_drop_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    for indirect in (True, False):
        sink, _, _ = make_sink(Callback(print, fail, indirect=indirect), "test")
        finish(sink)
    assert caplog.text.count("ZeroDivisionError") == 2


def test_a_slow_callback_fills_its_queue_and_tells_of_room() -> None:
    gate = threading.Event()
    sink, _, _ = make_sink(lambda _: gate.wait(SECONDS), "test")
    half = CALLBACK_ITEMS // 2
    assert sink.push(repeat(None, half), half) is True
    assert sink.push(repeat(None, half), half) is False
    told = threading.Event()
    sink.when_room(told.set)
    waiting = Thread(sink.wait_room)
    until(lambda: waits_for_room(sink))
    assert not told.is_set()
    gate.set()
    waiting.wait()
    assert told.wait(SECONDS)
    finish(sink)
    assert sink.dropped == 0


def test_the_callback_thread_never_waits_for_itself() -> None:
    done: list[int] = []

    def callback(number: int) -> None:
        if number == 0:
            sink.push(range(1, CALLBACK_ITEMS + 1), CALLBACK_ITEMS)
            sink.wait_room()
            assert sink.join(SECONDS)
            sink.close()
        done.append(number)

    sink, _, _ = make_sink(callback, "test")
    push(sink, 0)
    assert sink.join(SECONDS)
    assert len(done) == CALLBACK_ITEMS + 1


def test_join_says_when_a_callback_does_not_end() -> None:
    gate = threading.Event()
    sink, _, _ = make_sink(lambda _: gate.wait(SECONDS), "test")
    push(sink, 1)
    sink.close()
    assert sink.join(0.01) is False
    gate.set()
    assert sink.join(None) is True


def test_the_callback_thread_keeps_no_item() -> None:
    seen = threading.Event()
    sink, _, _ = make_sink(lambda _: seen.set(), "test")
    item = Item()
    gone = weakref.ref(item)
    sink.push([item], 1)
    del item
    assert seen.wait(SECONDS)
    until(lambda: gone() is None)
    finish(sink)


def test_a_list_lets_go_of_each_item_after_its_call() -> None:
    gate = threading.Event()
    alive: list[bool] = []
    items = [Item() for _ in range(3)]
    refs = list(map(weakref.ref, items))

    def callback(_: Item) -> None:
        assert gate.wait(SECONDS)
        alive.append(refs[0]() is not None)

    sink, _, _ = make_sink(callback, "test")
    sink.push(items, 3)
    del items
    gate.set()
    finish(sink)
    assert alive == [True, False, False]


def test_too_many_threads_are_counted_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    got: list[str] = []
    sink, _, _ = make_sink(Callback(print, lambda: got.append("end")), "test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert push(sink, 1, 2) is True
        assert sink.dropped == 2
        sink.close()
    assert got == ["end"]
    assert "cannot be started" in caplog.text


def test_a_direct_callback_runs_where_it_is_pushed() -> None:
    threads: list[threading.Thread] = []
    sink, _, _ = make_sink(
        Callback(lambda _: threads.append(threading.current_thread()), indirect=False), "test"
    )
    assert push(sink, 1, 2) is True
    assert threads == [threading.current_thread()] * 2
    finish(sink)


def test_a_direct_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    got: list[float] = []
    sink, _, _ = make_sink(Callback(lambda x: got.append(1 / x), indirect=False), "test")
    push(sink, 1, 0, 2)
    assert got == [1, 0.5]
    assert "callback error" in caplog.text
    finish(sink)


def test_a_direct_callback_may_be_closed_from_itself() -> None:
    got: list[object] = []

    def callback(number: int) -> None:
        got.append(number)
        sink.close()

    sink, _, _ = make_sink(Callback(callback, lambda: got.append("end"), indirect=False), "test")
    push(sink, 1, 2)
    assert got == [1, 2, "end"]


def test_drop_of_a_direct_callback_waits_for_the_one_that_runs() -> None:
    got: list[str] = []
    inside, gate = threading.Event(), threading.Event()

    def callback(_: int) -> None:
        inside.set()
        gate.wait(SECONDS)
        got.append("item")

    sink, _, _ = make_sink(Callback(callback, lambda: got.append("end"), indirect=False), "test")
    pushing = Thread(lambda: push(sink, 1))
    assert inside.wait(SECONDS)
    sink.close()
    assert got == []
    gate.set()
    pushing.wait()
    assert got == ["item", "end"]


# The process -------------------------------------------------------------------------------------


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS * 2
    )


@pytest.mark.process
def test_a_callback_left_open_does_not_keep_the_interpreter() -> None:
    ended = run(
        "import threading\n"
        "from zenlake.api.handlers import make_sink, Callback\n"
        "seen = threading.Event()\n"
        "sinks = [make_sink(Callback(lambda x: seen.set(), print), 'x')[0] for _ in range(3)]\n"
        "sinks[0].push([1], 1)\n"
        "assert seen.wait(30)\n"
        "fifo = make_sink(None, 'y')\n"
        "threading.Thread(target=fifo[1].recv, daemon=True).start()\n"
        "print('end of script')\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end of script\n", "")


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_child_of_a_fork_does_not_hang_on_its_parents_sinks() -> None:
    dropped: list[int] = []
    inside, gate = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        inside.set()
        gate.wait(SECONDS)

    kinds: list[object] = [Callback(callback, lambda: dropped.append(1)), None, RingChannel(2)]
    made = [make_sink(kind, "test") for kind in kinds]
    made.append(make_sink(Callback(len, lambda: dropped.append(1), indirect=False), "test"))
    push(made[0][0], 1)
    assert inside.wait(SECONDS)
    push(made[1][0], 1)
    push(made[2][0], 1)
    held = threading.Event()

    def hold_the_locks() -> None:
        threaded: Any = made[0][0]
        fifo: Any = made[1][0]
        ring: Any = made[2][0]
        direct: Any = made[3][0]
        with threaded._lock, fifo._lock, ring._ready, direct._lock:
            held.set()
            gate.wait(SECONDS)

    holder = Thread(hold_the_locks)
    assert held.wait(SECONDS)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            for sink, _, _ in made:
                push(sink, 2)
                sink.wait_room()
                sink.close()
                assert sink.join(None)
            assert list(made[1][1]) == [1]
            assert list(made[2][1]) == []
            assert dropped == []  # it is the parent's to say that it ended
            del made, sink
            gc.collect()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # nothing of pytest may run in the child
            os._exit(1)
    _, status = os.waitpid(child, 0)
    gate.set()
    holder.wait()
    for sink, _, _ in made:
        finish(sink)
    assert status == 0
    assert dropped == [1, 1]


# Receiver ----------------------------------------------------------------------------------------


class Subscription(Receiver[Any]):
    _what = "subscriber"


def receiver(given: object = None) -> Subscription:
    sink, handler, _ = make_sink(given, "test")
    return make(Subscription, None, sink.close, sink, handler)


def test_a_receiver_reads_its_handler() -> None:
    with receiver() as sub:
        assert isinstance(sub.handler, Handler)
        assert sub.handler is sub.handler
        push(sub._sink, 1, 2, 3)
        assert [sub.recv(), sub.try_recv()] == [1, 2]
        handler = iter(sub)
        assert handler is sub.handler
    assert list(handler) == [3]


def test_after_undeclare_everything_is_an_error() -> None:
    sub = receiver()
    sub.undeclare()
    for call in (
        sub.recv,
        sub.try_recv,
        sub.undeclare,
        sub.__enter__,
        sub.__exit__,
        lambda: sub.handler,
        lambda: iter(sub),
    ):
        with pytest.raises(ZError, match=r"^Undeclared subscriber$"):
            call()


def test_undeclare_wakes_who_waits_in_recv() -> None:
    sub = receiver()
    handler = sub.handler
    thread = Thread(sub.recv)
    until(lambda: blocked_in_recv(handler))
    sub.undeclare()
    assert str(thread.wait()) == "channel is empty and closed"


def test_reading_goes_to_whatever_the_handler_is() -> None:
    sub = receiver((len, "hdl"))
    assert list(sub) == ["h", "d", "l"]
    with pytest.raises(AttributeError, match="'str' object has no attribute 'recv'"):
        sub.recv()
    sub.undeclare()
    callback = receiver(len)
    assert callback.handler is None
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'recv'"):
        callback.recv()
    callback.undeclare()


def test_a_receiver_can_be_annotated_with_its_handler() -> None:
    assert str(Receiver[Handler[int]]) == (
        "zenlake.api.handlers.Receiver[zenlake.api.handlers.Handler[int]]"
    )
