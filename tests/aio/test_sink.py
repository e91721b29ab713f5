"""The queue between threads and a loop: order, wake-ups, room, cancellation, closed loops."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from tests.support.event_loops import Run, on_every_loop
from tests.support.waiting import until, until_async
from zenlake.aio.handler import Handler, HandlerPlan, plan_for
from zenlake.aio.sink import ITEMS_PER_TURN, AsyncSink, Owing, RingSink
from zenlake.api.handlers import Callback, DefaultHandler, FifoChannel, RingChannel
from zenlake.errors import ZError

pytestmark = pytest.mark.slow


async def in_thread(call: Any, *arguments: Any) -> Any:
    return await asyncio.to_thread(call, *arguments)


@on_every_loop
def test_items_of_all_chunks_come_in_order_from_another_thread(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(1000)

        def produce() -> None:
            for start in range(0, 900, 90):
                sink.push(map(int, range(start, start + 90)), 90)
            sink.close()

        thread = threading.Thread(target=produce)
        thread.start()
        found = [item async for item in Handler[int](HandlerPlan(sink))]
        thread.join()
        assert found == list(range(900))

    run(main())


@on_every_loop
def test_a_chunk_wakes_a_waiting_loop_once_and_a_busy_one_never(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(10_000)
        first = asyncio.create_task(sink.recv())
        await until_async(lambda: sink._waiters)
        await in_thread(sink.push, range(1000), 1000)
        assert await first == 0
        assert sink.wakeups == 1
        for _ in range(5):  # nobody waits: the taker finds these by itself
            await in_thread(sink.push, range(1000), 1000)
        assert [await sink.recv() for _ in range(5999)][-1] == 999
        assert sink.wakeups == 1
        waiting = asyncio.create_task(sink.recv())
        await until_async(lambda: sink._waiters)
        for item in range(100):  # the loop cannot run meanwhile
            sink.push([item], 1)
        assert sink.wakeups == 2
        assert await waiting == 0

    run(main())


@on_every_loop
def test_a_cancelled_recv_loses_nothing(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(10)
        waiting = asyncio.create_task(sink.recv())
        await until_async(lambda: sink._waiters)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not sink._waiters
        sink.push([1, 2], 2)
        assert (await sink.recv(), await sink.recv()) == (1, 2)

    run(main())


@on_every_loop
def test_one_cancelled_between_wake_up_and_turn_hands_on_to_the_next(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(10)
        first, second = (asyncio.create_task(sink.recv()) for _ in range(2))
        await until_async(lambda: len(sink._waiters) == 2)
        sink.push([7], 1)
        sink._wake()  # the first waiter is told, but has not run
        first.cancel()
        assert await second == 7
        with pytest.raises(asyncio.CancelledError):
            await first

    run(main())


@on_every_loop
def test_cancelled_at_any_moment_nothing_is_lost_or_doubled(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(100_000)
        found: list[int] = []

        async def take() -> None:
            while True:
                found.append(await sink.recv())

        def produce() -> None:
            for item in range(3000):
                sink.push([item], 1)

        thread = threading.Thread(target=produce)
        thread.start()
        while len(found) < 3000:
            task = asyncio.create_task(take())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        thread.join()
        assert found == list(range(3000))

    run(main())


@on_every_loop
def test_a_fast_producer_does_not_starve_the_other_tasks(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(10)
        sink.push(range(100 * ITEMS_PER_TURN), 100 * ITEMS_PER_TURN)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(100 * ITEMS_PER_TURN):
            await sink.recv()
        task.cancel()
        assert turns >= 90

    run(main())


@on_every_loop
def test_full_and_room_again_below_half(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(4)
        rooms: list[int] = []
        assert sink.push([0, 1, 2], 3)
        assert not sink.push([3], 1)
        assert not sink.push([4, 5], 2)  # taken all the same
        sink.when_room(lambda: rooms.append(sink.waiting))
        for item in range(4):
            assert await sink.recv() == item
            assert not rooms
        assert await sink.recv() == 4
        assert rooms == [1]
        await sink.recv()
        assert rooms == [1]
        sink.when_room(lambda: rooms.append(-1))
        assert rooms == [1, -1]

    run(main())


@on_every_loop
def test_a_thread_waits_for_room_and_a_loop_is_left_to_await_it(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(2)
        sink.push([1, 2], 2)
        waiting = asyncio.create_task(in_thread(sink.wait_room))
        await until_async(lambda: sink._room)
        with Owing() as owing:
            sink.wait_room()  # returns: this is the loop's thread
        settling = asyncio.create_task(owing.settle())
        await until_async(lambda: len(sink._room) == 2)
        assert not waiting.done()
        assert not settling.done()
        assert (await sink.recv(), await sink.recv()) == (1, 2)
        await waiting
        await settling
        with Owing() as owing:
            sink.wait_room()
        await owing.settle()

    run(main())


@on_every_loop
def test_closed_what_waits_is_taken_and_then_it_ends(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(2)
        handler = Handler[int](HandlerPlan(sink))
        assert handler.try_recv() is None
        sink.push([1, 2], 2)
        sink.close()
        assert sink.push([3], 1)
        assert sink.dropped == handler.dropped == 1
        assert handler.try_recv() == 1
        assert [item async for item in handler] == [2]
        with pytest.raises(ZError, match="channel is empty and closed"):
            await handler.recv()
        with pytest.raises(ZError, match="channel is empty and closed"):
            handler.try_recv()

    run(main())


@on_every_loop
def test_closing_wakes_everybody(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(2)
        waiting = [asyncio.create_task(sink.recv()) for _ in range(3)]
        await until_async(lambda: len(sink._waiters) == 3)
        await in_thread(sink.close)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, ZError)

    run(main())


@on_every_loop
def test_a_ring_keeps_the_newest_and_counts_the_others(run: Run) -> None:
    async def main() -> None:
        sink: RingSink[int] = RingSink(3)
        rooms: list[bool] = []
        assert sink.push(range(10), 10)
        assert sink.push([10], 1)
        sink.when_room(lambda: rooms.append(True))
        sink.wait_room()
        assert rooms == [True]
        assert (sink.dropped, sink.waiting) == (8, 3)
        sink.close()
        assert [item async for item in Handler[int](HandlerPlan(sink))] == [8, 9, 10]
        assert sink.dropped == 8

    run(main())


@on_every_loop
def test_an_item_that_cannot_be_made_is_counted_and_the_next_comes(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        sink: AsyncSink[float] = AsyncSink(10)
        sink.push(map(lambda x: 1 / x, [1, 0, 2]), 3)  # noqa: C417 - a lazy chunk, as sessions give
        assert (await sink.recv(), await sink.recv()) == (1.0, 0.5)
        assert (sink.dropped, sink.waiting) == (1, 0)
        ring: RingSink[float] = RingSink(2)
        ring.push(map(lambda x: 1 / x, [1, 0, 2, 4]), 4)  # noqa: C417
        assert (ring.dropped, ring.waiting) == (2, 2)
        assert (await ring.recv(), await ring.recv()) == (0.5, 0.25)

    run(main())
    assert "an item could not be made" in caplog.text


@on_every_loop
def test_a_taken_item_is_not_kept_alive_by_its_chunk(run: Run) -> None:
    class Item:
        pass

    async def main() -> None:
        sink: AsyncSink[Item] = AsyncSink(10)
        sink.push([Item(), Item()], 2)
        await sink.recv()
        gc.collect()
        assert sum(type(found) is Item for found in gc.get_objects()) == 1
        await sink.recv()
        assert sum(type(found) is Item for found in gc.get_objects()) == 0

    run(main())


def test_a_closed_loop_makes_its_sinks_drop_instead_of_fill() -> None:
    async def main() -> tuple[AsyncSink[int], AsyncSink[int]]:
        idle: AsyncSink[int] = AsyncSink(2)
        waited: AsyncSink[int] = AsyncSink(2)
        waiting = asyncio.create_task(waited.recv())
        await until_async(lambda: waited._waiters)
        waited._waiters.append(asyncio.get_running_loop().create_future())  # as if left behind
        waiting.cancel()
        return idle, waited

    idle, waited = asyncio.run(main())
    assert waited.push([1], 1)
    assert waited.closed
    assert waited.dropped == 1
    assert idle.push([1], 1)
    assert idle.push([2], 1)
    assert (idle.dropped, idle.waiting) == (2, 0)


def test_who_waits_for_room_goes_on_when_the_loop_is_closed() -> None:
    sinks: list[AsyncSink[int]] = []

    async def main() -> None:
        sinks.append(AsyncSink(1))
        sinks[0].push([1], 1)

    with asyncio.Runner() as runner:
        runner.run(main())
        thread = threading.Thread(target=sinks[0].wait_room)
        thread.start()
        until(lambda: sinks[0]._room)
    thread.join(30)
    assert not thread.is_alive()
    assert sinks[0].dropped == 1


@on_every_loop
def test_another_loop_is_refused_with_a_word(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(2)

        def elsewhere() -> None:
            with pytest.raises(ZError, match="another event loop"):
                asyncio.run(sink.recv())

        await in_thread(elsewhere)

    run(main())


@on_every_loop
def test_in_the_child_of_a_fork_nothing_is_left(run: Run) -> None:
    async def main() -> None:
        sink: AsyncSink[int] = AsyncSink(2)
        sink.push([1, 2], 2)
        sink._after_fork()
        assert sink.push([3], 1)
        sink.wait_room()
        with pytest.raises(ZError, match="closed"):
            await sink.recv()

    run(main())


# ---- callbacks


@on_every_loop
def test_callbacks_run_on_the_loop_one_after_another_and_drop_comes_last(run: Run) -> None:
    async def main() -> None:
        loop, running, calls = asyncio.get_running_loop(), 0, list[object]()

        async def slow(item: int) -> None:
            nonlocal running
            assert asyncio.get_running_loop() is loop
            running += 1
            assert running == 1
            await asyncio.sleep(0.001)
            running -= 1
            calls.append(item)

        plan = plan_for(Callback(slow, lambda: calls.append("drop")))
        assert plan.background
        plan.start()
        await in_thread(plan.sink.push, range(20), 20)
        await in_thread(plan.sink.close)
        assert await plan.sink.delivered()
        assert calls == [*range(20), "drop"]

    run(main())


@on_every_loop
def test_what_a_callback_raises_goes_to_the_loop_and_delivery_goes_on(run: Run) -> None:
    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: reported.append(told))
        calls: list[int] = []

        def plain(item: int) -> None:
            calls.append(item)
            if item == 1:
                raise ValueError("one")

        async def cancelling(item: int) -> None:
            calls.append(item)
            if item == 1:
                inner = asyncio.get_running_loop().create_future()
                inner.cancel()
                await inner

        for callback in (plain, cancelling):
            plan = plan_for(callback)
            plan.start()
            plan.sink.push(range(3), 3)
            plan.sink.close()
            await plan.sink.delivered()
        assert calls == [0, 1, 2, 0, 1, 2]
        assert [type(told["exception"]) for told in reported] == [
            ValueError,
            asyncio.CancelledError,
        ]
        assert reported[0]["message"] == "zenlake: callback error"

    run(main())


@on_every_loop
def test_inside_a_callback_nobody_waits_for_itself(run: Run) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def callback(item: int) -> None:
            plan.sink.capacity = 1
            with Owing() as owing:
                plan.sink.wait_room()
            await owing.settle()
            plan.sink.close()
            assert await plan.sink.delivered()
            ended.set()

        plan = plan_for(callback)
        plan.start()
        plan.sink.push([1, 2, 3], 3)
        await ended.wait()
        await plan.sink.delivered()

    run(main())


def test_a_loop_that_ends_ends_the_callbacks_and_drops_the_rest() -> None:
    kept: list[HandlerPlan] = []
    calls: list[object] = []

    async def main() -> None:
        async def stuck(item: int) -> None:
            calls.append(item)
            await asyncio.get_running_loop().create_future()

        kept.append(plan_for(Callback(stuck, lambda: calls.append("drop"))))
        kept[0].start()
        kept[0].sink.push([1, 2, 3], 3)
        await until_async(lambda: calls)

    asyncio.run(main())
    assert calls == [1, "drop"]
    assert kept[0].sink.dropped == 2
    assert asyncio.run(kept[0].sink.delivered()) is False


def test_the_callbacks_of_another_loop_are_waited_for() -> None:
    calls: list[int] = []
    plans: list[HandlerPlan] = []
    ready, stop = threading.Event(), threading.Event()

    async def there() -> None:
        async def slow(item: int) -> None:
            await asyncio.sleep(0.001)
            calls.append(item)

        plans.append(plan_for(slow))
        plans[0].start()
        ready.set()
        await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(there(),))
    thread.start()
    ready.wait()
    plans[0].sink.push(range(50), 50)
    plans[0].sink.close()
    assert asyncio.run(plans[0].sink.delivered())
    assert calls == list(range(50))
    stop.set()
    thread.join()


@on_every_loop
def test_every_kind_of_handler(run: Run) -> None:
    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        channels: list[tuple[Any, type[Any], int]] = [
            (None, AsyncSink, 256),
            (DefaultHandler(), AsyncSink, 256),
            (FifoChannel(5), AsyncSink, 5),
            (FifoChannel(0), AsyncSink, 1),
            (RingChannel(5), RingSink, 5),
        ]
        for given, kind, capacity in channels:
            plan = plan_for(given)
            assert (type(plan.sink), plan.sink.capacity) == (kind, capacity)
            assert plan.callback is None
            assert not plan.background
        for other in (3, "text", (), (1, 2), [print, 1]):
            with pytest.raises(ValueError, match=f"Invalid handler type {type(other).__name__}"):
                plan_for(other)
        plan = plan_for((queue.put, queue))
        plan.start()
        handler = Handler[int](plan)
        assert handler.handler is queue
        assert not plan.background
        plan.sink.push([1, 2], 2)
        assert (await queue.get(), await queue.get()) == (1, 2)
        with pytest.raises(ZError, match="has a callback"):
            await handler.recv()
        with pytest.raises(ZError, match="has a callback"):
            handler.try_recv()
        with pytest.raises(ZError, match="has a callback"):
            aiter(handler)
        plan.sink.close()
        await plan.sink.delivered()

    run(main())
