"""Providers of shared memory: equal calls of eclipse-zenoh and of this package have equal results.

Each scene yields what a user sees, as plain values.
"""

import copy
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zenoh.shm

import zenlake.shm
from tests.support.shared_memory import mapped_segments

KIB = 1 << 10
SIZE = 64 * KIB
FILES = Path("/proc/self/fd")
Scene = Callable[[Any], Iterator[Any]]


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call as a plain value, or the name of its error."""
    try:
        found = call()
    except Exception as error:  # noqa: BLE001  # which one is the question
        refused = isinstance(error, zenoh.ZError | zenlake.ZError)
        return "ZError" if refused else type(error).__name__
    return found if isinstance(found, int | bytes | str | bool | None) else type(found).__name__


def sizes(api: Any) -> Iterator[Any]:
    shm = api.shm
    eight = shm.AllocAlignment.ALIGN_8_BYTE
    for layout in ((SIZE, eight), shm.MemoryLayout((SIZE, eight))):
        provider = shm.ShmProvider.default_backend(layout)
        for wanted in (
            1,
            True,
            np.int64(100),
            (16, eight),
            (np.int32(16), shm.AllocAlignment(np.uint8(3))),
            shm.MemoryLayout((16, eight)),
            shm.MemoryLayout(np.int64(16)),
            0,
            -1,
            1 << 63,
            1 << 64,
            1.0,
            (5, eight),
            [16, eight],
            (16, 3),
            (16,),
            "a",
            None,
        ):
            yield outcome(lambda: len(bytes(provider.alloc(wanted))))  # noqa: B023
    for wrong in (0, -1, "a", None, (5, eight)):
        yield outcome(lambda: shm.ShmProvider.default_backend(wrong))  # noqa: B023


def writing(api: Any) -> Iterator[Any]:
    provider = api.shm.ShmProvider.default_backend(SIZE)
    buffer = provider.alloc(5)
    buffer[:] = b"hello"
    yield bytes(buffer)
    yield str(buffer)
    buffer[0] = 72
    buffer[1:3] = bytearray(b"EL")
    yield str(buffer)

    def put(item: Any, value: Any) -> Any:
        buffer[item] = value
        return str(buffer)

    for item, value in (
        (4, 0x21),
        (4, 256),
        (4, -1),
        (5, 1),
        (4, "a"),
        (4, b"a"),
        (slice(0, 2), 5),
        (slice(0, 2), "ab"),
        (slice(0, 2), b"abc"),
        (slice(0, 9), b"abcde"),
        ("a", 1),
    ):
        yield outcome(lambda: put(item, value))  # noqa: B023
    buffer[:] = b"\xff\xfe\x00\x01\x02"
    yield bytes(buffer)
    yield outcome(lambda: str(buffer))
    payload = api.ZBytes(buffer)
    yield outcome(lambda: str(payload.as_shm()))


def giving_away(api: Any) -> Iterator[Any]:
    provider = api.shm.ShmProvider.default_backend(SIZE)
    buffer = provider.alloc(5)
    buffer[:] = b"hello"
    payload = api.ZBytes(buffer)
    yield bytes(payload), str(payload.to_string()), len(payload)
    yield outcome(lambda: bytes(buffer))
    yield outcome(lambda: str(buffer))
    yield outcome(lambda: api.ZBytes(buffer))
    yield outcome(lambda: buffer.__setitem__(0, 1))
    shared = payload.as_shm()
    yield type(shared).__name__, bytes(shared), str(shared), shared.is_valid()
    yield api.ZBytes(b"hello").as_shm() is None
    again = api.ZBytes(shared)
    yield bytes(again), again == payload


def shortage(api: Any) -> Iterator[Any]:
    shm = api.shm
    provider = shm.ShmProvider.default_backend(SIZE)
    kept = [provider.alloc(8 * KIB) for _ in range(7)]
    for policy in (
        None,
        shm.JustAlloc(),
        shm.Defragment(),
        shm.GarbageCollect(),
        shm.GarbageCollect(safe=False),
        shm.GarbageCollect(shm.Defragment()),
        shm.Defragment(shm.GarbageCollect()),
    ):
        arguments = () if policy is None else (policy,)
        yield outcome(lambda: provider.alloc(16 * KIB, *arguments))  # noqa: B023
    yield outcome(lambda: provider.alloc(16 * KIB, "a"))
    del kept[:]
    yield outcome(lambda: provider.alloc(16 * KIB, shm.GarbageCollect(shm.Defragment())))
    big = 48 * KIB
    yield outcome(lambda: provider.alloc(big, shm.GarbageCollect(alt_policy=shm.Defragment())))


def waiting(api: Any) -> Iterator[Any]:
    provider = api.shm.ShmProvider.default_backend(SIZE)
    kept = [provider.alloc(40 * KIB)]
    done: list[int] = []

    def allocate() -> None:
        policy = api.shm.BlockOn(api.shm.GarbageCollect())
        done.append(len(bytes(provider.alloc(40 * KIB, policy))))

    thread = threading.Thread(target=allocate)
    thread.start()
    time.sleep(0.1)
    yield list(done)
    kept.clear()
    thread.join(60)
    yield done, thread.is_alive()


def taking(api: Any) -> Iterator[Any]:
    """Buffers are taken from the program itself: as many as are needed, but not above the limit."""
    shm = api.shm
    for given_away in (False, True):
        for limit in (0, 1, 2, 3, 9):
            provider = shm.ShmProvider.default_backend(SIZE)
            kept = [provider.alloc(16 * KIB) for _ in range(3)]
            if given_away:
                kept = [api.ZBytes(buffer) for buffer in kept]
            yield outcome(lambda: len(bytes(provider.alloc(30 * KIB, shm.Deallocate(limit)))))  # noqa: B023
            yield outcome(lambda: len(bytes(provider.alloc(17 * KIB, shm.Deallocate(limit)))))  # noqa: B023
            if given_away:
                yield sum(payload.as_shm().is_valid() for payload in kept)


def copying(api: Any) -> Iterator[Any]:
    shm = api.shm
    provider = shm.ShmProvider.default_backend(SIZE)
    buffer = provider.alloc(5)
    payload = api.ZBytes(provider.alloc(5))
    for whole in (provider, buffer, payload.as_shm()):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            yield outcome(lambda: how(whole))  # noqa: B023
    for safe in (True, False, None, 1):
        yield outcome(lambda: shm.GarbageCollect(safe=safe))  # noqa: B023


SCENES: list[Scene] = [sizes, writing, giving_away, shortage, waiting, taking, copying]


@pytest.mark.interop
@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_has_the_results_of_the_reference(scene: Scene) -> None:
    theirs = list(scene(zenoh))
    assert theirs
    assert list(scene(zenlake)) == theirs


# ---- ours alone


def provider_of(size: int) -> Any:
    return zenlake.shm.ShmProvider.default_backend(size)


def test_memory_of_dropped_buffers_is_collected() -> None:
    provider = provider_of(SIZE)
    for _ in range(100):
        buffers = [provider.alloc(8 * KIB) for _ in range(8)]
        assert provider.available == 0
        del buffers
        assert provider.garbage_collect() == 8 * KIB
        provider.defragment()
        assert provider.available == SIZE


def test_no_memory_is_said_with_what_to_do() -> None:
    provider = provider_of(SIZE)
    kept = provider.alloc(SIZE)
    with pytest.raises(zenlake.ZError, match=r"out of memory: .*collect garbage, or wait"):
        provider.alloc(1)
    with pytest.raises(zenlake.ZError, match="out of memory: 65537 bytes of 65536"):
        provider.alloc(SIZE + 1)
    assert len(kept) == SIZE


def use_of_taken(provider: Any) -> Any:
    """Take all buffers of the program, and use them; return the buffer that has the memory now."""
    written, sent = provider.alloc(SIZE // 2), zenlake.ZBytes(provider.alloc(SIZE // 2))
    shared = sent.as_shm()
    assert shared is not None
    whole = provider.alloc(SIZE, zenlake.shm.Deallocate(5))
    whole[:] = bytes(SIZE)
    uses: list[Callable[[], object]] = [
        lambda: bytes(written),
        lambda: str(written),
        lambda: written.__setitem__(0, 1),
        lambda: zenlake.ZBytes(written),
        lambda: bytes(sent),
        lambda: bytes(shared),
        lambda: zenlake.ZBytes(shared),
    ]
    for use in uses:
        with pytest.raises(zenlake.ZError, match="deallocated"):
            use()
    assert not shared.is_valid()
    return whole


def test_buffers_that_were_taken_raise() -> None:
    provider = provider_of(SIZE)
    whole = use_of_taken(provider)
    gc.collect()
    assert bytes(whole) == bytes(SIZE)
    assert provider.garbage_collect() == 0
    del whole
    assert provider.garbage_collect() == SIZE


def test_threads_that_take_buffers_from_each_other_lose_no_memory() -> None:
    provider, deallocate = provider_of(4 * KIB), zenlake.shm.Deallocate(1)
    rounds: list[int] = []

    def use() -> None:
        for turn in range(300):
            with suppress(zenlake.ZError):  # Another thread has taken it.
                bytes(zenlake.ZBytes(provider.alloc(KIB, deallocate)))
            rounds.append(turn)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rounds) == 1200
    provider.garbage_collect()
    provider.defragment()
    assert provider.available == 4 * KIB


def test_an_index_from_the_end_is_refused() -> None:
    buffer = provider_of(SIZE).alloc(5)
    with pytest.raises(TypeError):
        buffer[-1] = 1


def test_a_view_is_written_and_read_in_place() -> None:
    buffer = provider_of(SIZE).alloc(5)
    buffer.view[:] = b"hello"
    assert bytes(buffer) == b"hello"
    payload = zenlake.ZBytes(buffer)
    with pytest.raises(zenlake.ZError, match="consumed"):
        _ = buffer.view
    assert payload.view.readonly


def test_a_thousand_providers_leave_nothing() -> None:
    provider_of(4096)
    before = len(mapped_segments()), len(list(FILES.iterdir()))
    for _ in range(1000):
        provider_of(4096).alloc(100)
    provider_of(4096)
    gc.collect()
    after = len(mapped_segments()), len(list(FILES.iterdir()))
    assert after[0] <= before[0] + 5
    assert after[1] <= before[1] + 10
