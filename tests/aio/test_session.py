"""The asyncio session with eclipse-zenoh on the other side, and with itself."""

import asyncio
import gc
import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from tests.support.event_loops import LOOPS, Run, on_every_loop, runner
from tests.support.leaks import alive
from tests.support.reference_router import ReferenceRouter
from tests.support.waiting import until, until_async
from zenlake import aio
from zenlake.api.config.config import Config
from zenlake.api.discovery.scouting import Hello
from zenlake.api.handlers import Callback, FifoChannel, RingChannel
from zenlake.api.values.enums import CongestionControl, Priority, SampleKind
from zenlake.api.values.reply import Reply
from zenlake.api.values.sample import Sample
from zenlake.errors import ZError
from zenlake.runtime import kernel_loader

pytestmark = pytest.mark.slow

BLOCK = CongestionControl.BLOCK


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """They load once, on a thread that outlives the test that needs them first."""
    kernel_loader.load()


@pytest.fixture(scope="module")
def reference() -> Iterator[ReferenceRouter]:
    with ReferenceRouter() as node:
        yield node


def config(*endpoints: str) -> Config:
    made = Config()
    for key, value in {
        "mode": "client" if endpoints else "peer",
        "connect/endpoints": list(endpoints),
        "listen/endpoints": [],
        "scouting/multicast/enabled": False,
    }.items():
        made.insert_json5(key, json.dumps(value))
    return made


def texts(samples: list[Sample]) -> list[str]:
    return [sample.payload.to_string().strip() for sample in samples]


def text(reply: Reply) -> str:
    ok, err = reply.ok, reply.err
    if ok is not None:
        return ok.payload.to_string()
    assert err is not None
    return f"err {err.payload.to_string()}"


async def asked(reference: ReferenceRouter, what: str, **arguments: Any) -> Any:
    """Their answer, while the loop goes on."""
    return await asyncio.to_thread(reference.ask, what, **arguments)


async def until_theirs(
    reference: ReferenceRouter, what: str, wanted: Any, **arguments: Any
) -> None:
    while await asked(reference, what, **arguments) != wanted:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


# ---- publishing and subscribing


@pytest.mark.interop
@on_every_loop
def test_what_is_put_here_arrives_there(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            await session.put("sub/a", "one", congestion_control=BLOCK)
            await session.delete("sub/a", congestion_control=BLOCK)
            async with await session.declare_publisher(
                "sub/b", congestion_control=BLOCK, priority=Priority.DATA
            ) as publisher:
                assert str(publisher.key_expr) == "sub/b"
                await asyncio.gather(*(publisher.put(str(i)) for i in range(50)))
                await publisher.delete()
            with pytest.raises(ZError, match="Undeclared publisher"):
                await publisher.put("late")
            await until_theirs(reference, "count", 53)
            assert await asked(reference, "samples") == [
                ["put", "sub/a", "one"],
                ["delete", "sub/a", ""],
                *(["put", "sub/b", str(i)] for i in range(50)),
                ["delete", "sub/b", ""],
            ]

    run(main())


@pytest.mark.interop
@on_every_loop
def test_rows_of_record_batches_arrive_in_order(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_publisher("sub/one") as publisher,
        ):
            await until_async(lambda: publisher.matching_status.matching)
            rows = pa.RecordBatch.from_pydict(
                {"key": [f"sub/{i}" for i in range(20)], "payload": [b"%d" % i for i in range(20)]}
            )
            assert await session.put_batch(rows) == 20
            assert await publisher.put_batch(rows.select(["payload"])) == 20
            await until_theirs(reference, "count", 40)
            assert await asked(reference, "samples") == [
                *(["put", f"sub/{i}", str(i)] for i in range(20)),
                *(["put", "sub/one", str(i)] for i in range(20)),
            ]
            assert session.stats() is not None

    run(main())


@pytest.mark.interop
@on_every_loop
def test_what_is_put_there_arrives_here_in_order(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_subscriber("out/**") as subscriber,
        ):
            assert str(subscriber.key_expr) == "out/**"
            assert subscriber.handler is subscriber
            await until_theirs(reference, "matching", True, key="out/a")
            await asked(reference, "put", key="out/a", count=2000)
            found = [await subscriber.recv() for _ in range(1000)]
            async for sample in subscriber:
                found.append(sample)
                if len(found) == 2000:
                    break
            assert texts(found) == [str(i) for i in range(2000)]
            assert subscriber.try_recv() is None
            assert subscriber.dropped == 0

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_slow_reader_makes_the_network_wait_and_gets_everything(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_subscriber("slow/a", FifoChannel(4)) as subscriber,
        ):
            await until_theirs(reference, "matching", True, key="slow/a")
            await asked(reference, "put", key="slow/a", count=3000, size=4096)
            await until_async(lambda: subscriber._sink.waiting >= 4)
            most = 0
            for number in range(3000):
                sample = await subscriber.recv()
                assert sample.payload.to_string().strip() == str(number)
                most = max(most, subscriber._sink.waiting)
            assert most < 1500  # far less than all of it ever waited here

    run(main())


@pytest.mark.interop
@on_every_loop
def test_cancelled_receivers_lose_nothing(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_subscriber("cancel/a") as subscriber,
        ):
            await until_theirs(reference, "matching", True, key="cancel/a")
            await asked(reference, "put", key="cancel/a", count=500)
            found: list[Sample] = []

            async def take() -> None:
                while True:
                    found.append(await subscriber.recv())

            while len(found) < 500:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(take(), 0.002)
            assert texts(found) == [str(i) for i in range(500)]

    run(main())


@pytest.mark.interop
@on_every_loop
def test_callbacks_plain_and_coroutine(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        plain: list[Sample] = []
        slow: list[Sample] = []
        dropped: list[str] = []

        async def coroutine(sample: Sample) -> None:
            await asyncio.sleep(0)
            slow.append(sample)

        async with await aio.open(config(reference.endpoint)) as session:
            await session.declare_subscriber("call/a", plain.append)  # stays, though let go
            second = await session.declare_subscriber(
                "call/a", Callback(coroutine, lambda: dropped.append("drop"))
            )
            gc.collect()
            await until_theirs(reference, "matching", True, key="call/a")
            await asked(reference, "put", key="call/a", count=300)
            await until_async(lambda: len(plain) == 300)
            await second.undeclare()
            assert dropped == ["drop"]
            assert texts(plain) == texts(slow) == [str(i) for i in range(300)]
            with pytest.raises(ZError, match="Undeclared subscriber"):
                await second.undeclare()

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_ring_and_a_queue_of_the_users_own(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        queue: asyncio.Queue[Sample] = asyncio.Queue(10)
        async with await aio.open(config(reference.endpoint)) as session:
            ring = await session.declare_subscriber("ring/a", RingChannel(3))
            own = await session.declare_subscriber("ring/a", (queue.put, queue))
            assert own.handler is queue
            await until_theirs(reference, "matching", True, key="ring/a")
            await asked(reference, "put", key="ring/a", count=100)
            found = [await queue.get() for _ in range(100)]
            assert texts(found) == [str(i) for i in range(100)]
            await until_async(lambda: ring.dropped == 97)
            assert texts([await ring.recv() for _ in range(3)]) == ["97", "98", "99"]

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_subscriber_that_is_let_go_is_undeclared(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            subscriber = await session.declare_subscriber("gone/a")
            await until_theirs(reference, "matching", True, key="gone/a")
            del subscriber
            gc.collect()
            await until_theirs(reference, "matching", False, key="gone/a")

    run(main())


@on_every_loop
def test_puts_to_a_full_subscriber_of_the_same_loop_wait_without_stopping_it(run: Run) -> None:
    async def main() -> None:
        async with (
            await aio.open(config()) as session,
            await session.declare_subscriber("own/a", FifoChannel(4)) as subscriber,
        ):
            for control in (CongestionControl.DROP, BLOCK):

                async def produce(control: CongestionControl = control) -> None:
                    for number in range(200):
                        await session.put("own/a", str(number), congestion_control=control)
                        assert subscriber._sink.waiting <= 4

                producing = asyncio.create_task(produce())
                await until_async(lambda: subscriber._sink.waiting == 4)
                found = [await subscriber.recv() for _ in range(200)]
                await producing
                assert texts(found) == [str(i) for i in range(200)]

    run(main())


@pytest.mark.interop
@on_every_loop
def test_puts_wait_for_a_peer_that_takes_nothing_and_the_loop_goes_on(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            publisher = await session.declare_publisher("sub/stopped", congestion_control=BLOCK)
            await until_async(lambda: publisher.matching_status.matching)
            sent = 0

            async def produce() -> None:
                nonlocal sent
                for number in range(400):
                    await publisher.put(f"{number:<65536}")
                    sent += 1

            reference.stop()
            try:
                producing = asyncio.create_task(produce())
                before, same = -1, 0
                while same < 10:  # it stands still, and this loop does not
                    await asyncio.sleep(0.03)
                    same = same + 1 if sent == before else 0
                    before = sent
                assert 0 < sent < 400
                given_up = asyncio.create_task(publisher.put("never"))
                await asyncio.sleep(0)
                given_up.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await given_up
            finally:
                reference.resume()
            await producing
            await until_theirs(reference, "count", 400)
            found = await asked(reference, "samples")
            assert [int(payload) for _, _, payload in found] == list(range(400))

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_listener_hears_of_the_first_matching_subscriber(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        key = f"match/{id(asyncio.get_running_loop())}"
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_publisher(key) as publisher,
            await publisher.declare_matching_listener() as listener,
        ):
            assert not publisher.matching_status.matching
            await asked(reference, "subscribe", key=key)
            assert (await listener.recv()).matching
            assert publisher.matching_status.matching

    run(main())


# ---- asking and answering


@pytest.mark.interop
@on_every_loop
def test_replies_of_the_reference_reach_get_querier_and_callback(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            wanted = ["0", "1", "2", "err that was all"]
            replies = [text(reply) async for reply in await session.get("query/*?n=3")]
            assert sorted(replies) == wanted
            async with await session.declare_querier("query/*") as querier:
                replies = [text(reply) async for reply in await querier.get(parameters="n=3")]
                assert sorted(replies) == wanted
            called: list[str] = []

            async def callback(reply: Reply) -> None:
                await asyncio.sleep(0)
                called.append(text(reply))

            await (await session.get("query/*?n=3", callback)).done()
            assert sorted(called) == wanted
            await until_async(lambda: not session._kept)
            assert [reply async for reply in await session.get("nobody/is/there")] == []

    run(main())


@pytest.mark.interop
@on_every_loop
def test_queries_of_the_reference_reach_our_queryables(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        async def answer(query: aio.Query) -> None:
            await asyncio.sleep(0)
            await query.reply(query.key_expr, f"answer {query.parameters.get('x')}")
            await query.reply_err("error")

        async with await aio.open(config(reference.endpoint)) as session:
            async with await session.declare_queryable("ours/called", answer):
                await until_theirs(reference, "answered", True, key="ours/called")
                found = await asked(reference, "get", selector="ours/called?x=1")
                assert sorted(found) == ["answer 1", "err error"]
            async with await session.declare_queryable("ours/taken") as queryable:
                await until_theirs(reference, "answered", True, key="ours/taken")
                asking = asyncio.create_task(asked(reference, "get", selector="ours/taken?x=2"))
                async with await queryable.recv() as query:
                    assert str(query.selector) == "ours/taken?x=2"
                    assert query.payload is None
                    await query.reply("ours/taken", "2")
                    with pytest.raises(ZError, match="reply"):
                        await query.reply("theirs", "2")
                with pytest.raises(ZError, match="Dropped query"):
                    await query.reply("ours/taken", "3")
                assert await asking == ["2"]

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_get_ends_its_query_when_it_is_given_up(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            replies = await session.get("held/a", timeout=600)
            await until_theirs(reference, "held", 1)
            with pytest.raises(TimeoutError):  # nothing is lost, nothing is cancelled
                await asyncio.wait_for(replies.recv(), 0.01)
            assert not replies._sink.closed

            async def loop() -> list[Reply]:
                return [reply async for reply in replies]

            waiting = asyncio.create_task(loop())
            await until_async(lambda: replies._sink._waiters)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert [reply async for reply in replies] == []

            async with await session.get("held/a", timeout=600) as replies:
                pass
            with pytest.raises(ZError, match="closed"):
                await replies.recv()

            token = aio.CancellationToken()
            replies = await session.get("held/a", timeout=600, cancellation_token=token)
            token.cancel()
            assert [reply async for reply in replies] == []
            with pytest.raises(ZError, match="cancelled"):
                await session.get("held/a", cancellation_token=token)

            last = await session.get("held/a", timeout=600)
            sink = last._sink
            del last
            gc.collect()
            await until_async(lambda: sink.closed)
            await asked(reference, "let_go")

    run(main())


@pytest.mark.interop
@on_every_loop
def test_a_get_that_times_out_ends_with_an_error(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            replies = await session.get("held/b", timeout=0.2)
            assert [text(reply) async for reply in replies] == ["err Timeout"]
            await asked(reference, "let_go")

    run(main())


@pytest.mark.interop
@on_every_loop
def test_tokens_are_seen_in_both_directions(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            liveliness = session.liveliness()
            await asked(reference, "token", key="alive/theirs")
            async with await liveliness.declare_subscriber("alive/*", history=True) as watcher:
                seen = await watcher.recv()
                assert (str(seen.key_expr), seen.kind) == ("alive/theirs", SampleKind.PUT)
                found = [reply async for reply in await liveliness.get("alive/*")]
                assert [str(reply.ok.key_expr) for reply in found if reply.ok] == ["alive/theirs"]
                await asked(reference, "untoken", key="alive/theirs")
                assert (await watcher.recv()).kind == SampleKind.DELETE
            async with await liveliness.declare_token("alive/ours"):
                await until_theirs(reference, "alive", ["alive/ours"], key="alive/*")
            await until_theirs(reference, "alive", [], key="alive/*")

    run(main())


# ---- sessions and loops


@pytest.mark.interop
@on_every_loop
def test_info_names_the_router_and_tells_its_history(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        async with await aio.open(config(reference.endpoint)) as session:
            info = session.info
            assert info.zid() == session.zid()
            assert len(info.routers_zid()) == 1
            assert info.peers_zid() == []
            assert [transport.zid for transport in info.transports()] == info.routers_zid()
            assert [link.zid for link in info.links()] == info.routers_zid()
            async with (
                await info.declare_transport_events_listener(history=True) as transports,
                await info.declare_link_events_listener(history=True) as links,
            ):
                assert (await transports.recv()).kind == SampleKind.PUT
                assert (await links.recv()).kind == SampleKind.PUT
            key = await session.declare_keyexpr("a/b")
            assert key == "a/b"
            await session.undeclare(key)
            assert session.new_timestamp() < session.new_timestamp()

    run(main())


@on_every_loop
def test_a_session_is_found_by_scouting(run: Run) -> None:
    async def main() -> None:
        found = config()
        group = f"224.0.0.{random.randrange(1, 255)}:{random.randrange(20_000, 30_000)}"
        for key, value in {
            "listen/endpoints": ["tcp/127.0.0.1:0"],
            "scouting/multicast/enabled": True,
            "scouting/multicast/address": group,
            "scouting/multicast/interface": "lo",
        }.items():
            found.insert_json5(key, json.dumps(value))
        called: list[Hello] = []
        async with (
            await aio.open(found) as session,
            await aio.scout(config=found) as scout,
            await aio.scout(called.append, "peer", found) as calling,
        ):
            hello = await scout.recv()
            assert hello.zid == session.zid()
            assert hello.locators
            await until_async(lambda: called)
            assert called[0].zid == session.zid()
            await scout.stop()
            await calling.stop()
            async for hello in scout:  # what was heard before, and then the end
                assert hello.zid == session.zid()
        assert calling not in aio.session._scouts

    run(main())


@pytest.mark.interop
@on_every_loop
def test_closing_ends_everything_and_says_so(run: Run, reference: ReferenceRouter) -> None:
    async def main() -> None:
        session = await aio.open(config(reference.endpoint))
        subscriber = await session.declare_subscriber("closed/a")
        publisher = await session.declare_publisher("closed/a")
        waiting = asyncio.create_task(subscriber.recv())
        await until_async(lambda: subscriber._sink._waiters)
        assert not session.is_closed()
        await session.close()
        await session.close()
        assert session.is_closed()
        with pytest.raises(ZError, match="channel is empty and closed"):
            await waiting
        assert [sample async for sample in subscriber] == []
        for operation in (session.put("a", "b"), publisher.put("b"), session.get("a")):
            with pytest.raises(ZError, match="session closed"):
                await operation

    run(main())


@on_every_loop
def test_what_was_received_is_called_back_before_close_returns(run: Run) -> None:
    async def main() -> None:
        found: list[Sample] = []

        async def slow(sample: Sample) -> None:
            await asyncio.sleep(0.001)
            found.append(sample)

        async with await aio.open(config()) as session:
            await session.declare_subscriber("late/a", slow)
            for number in range(50):
                await session.put("late/a", str(number))
        assert texts(found) == [str(i) for i in range(50)]

    run(main())


@on_every_loop
def test_a_session_that_cannot_be_opened(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ZError, match="Unable to connect"):
            await aio.open(config("tcp/127.0.0.1:1"))

    run(main())


@pytest.mark.interop
@on_every_loop
def test_an_opening_that_is_given_up_leaves_no_session(
    run: Run, reference: ReferenceRouter
) -> None:
    async def main() -> None:
        for turns in range(12):
            opening = asyncio.create_task(aio.open(config(reference.endpoint)))
            for _ in range(turns):
                await asyncio.sleep(0.005)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await (await opening).close()

    run(main())


@pytest.mark.interop
@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_that_ends_before_its_session(kind: str, reference: ReferenceRouter) -> None:
    run = runner(kind)

    async def leave() -> tuple[aio.Session, aio.Subscriber]:
        session = await aio.open(config(reference.endpoint))
        await session.declare_subscriber("ends/a", lambda sample: None)
        subscriber = await session.declare_subscriber("ends/a", FifoChannel(4))
        await until_theirs(reference, "matching", True, key="ends/a")
        return session, subscriber

    session, subscriber = run(leave())

    async def go_on() -> None:
        """In another loop, with the same session."""
        async with await session.declare_subscriber("ends/b") as other:
            await asked(reference, "put", key="ends/a", count=1000)
            await until_async(lambda: subscriber.dropped >= 1000)
            await until_theirs(reference, "matching", True, key="ends/b")
            await asked(reference, "put", key="ends/b", count=1)
            assert texts([await other.recv()]) == ["0"]
        await session.close()

    run(go_on())


@pytest.mark.interop
def test_a_session_that_is_let_go_with_its_loop_leaves_nothing(reference: ReferenceRouter) -> None:
    async def leave() -> None:
        session = await aio.open(config(reference.endpoint))
        await session.declare_subscriber("left/a", lambda sample: None)
        await session.declare_subscriber("left/a")

    before = alive()
    asyncio.run(leave())
    gc.collect()
    until(lambda: alive() <= before)  # it is closed on a thread of its own


@pytest.mark.interop
def test_several_loops_in_several_threads(reference: ReferenceRouter) -> None:
    problems: list[BaseException] = []

    async def talk(number: int) -> None:
        async with (
            await aio.open(config(reference.endpoint)) as session,
            await session.declare_subscriber(f"loops/{number}") as mine,
        ):
            for index in range(100):
                await session.put(f"loops/{number}", str(index), congestion_control=BLOCK)
            found = [await mine.recv() for _ in range(100)]
            assert texts(found) == [str(i) for i in range(100)]

    def work(number: int) -> None:
        try:
            runner(list(LOOPS)[number % 2])(talk(number))
        except BaseException as problem:  # noqa: BLE001 - told by the main thread
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_one_session_in_several_loops() -> None:
    """Each receives in its own loop what is put from the other."""
    met = threading.Barrier(2)
    problems: list[BaseException] = []
    session = asyncio.run(aio.open(config()))

    async def talk(number: int) -> None:
        async with await session.declare_subscriber(f"shared/{number}", FifoChannel(4)) as mine:
            await asyncio.to_thread(met.wait)

            async def produce() -> None:
                for index in range(200):
                    await session.put(f"shared/{1 - number}", str(index))

            producing = asyncio.create_task(produce())
            found = [await mine.recv() for _ in range(200)]
            await producing
            assert texts(found) == [str(i) for i in range(200)]
            await asyncio.to_thread(met.wait)

    def work(number: int) -> None:
        try:
            runner(list(LOOPS)[number])(talk(number))
        except BaseException as problem:  # noqa: BLE001 - told by the main thread
            problems.append(problem)
            met.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(session.close())
    assert problems == []
