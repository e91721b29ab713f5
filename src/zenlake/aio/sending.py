"""Sending without blocking the event loop.

Knows that a full lane makes a sender wait, and where it waits. Does not know what is sent.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from zenlake.aio.sink import Owing

T = TypeVar("T")


class SendGate:
    """Gate whose messages leave in the order in which their sends were awaited."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def send(self, call: Callable[[], T], waits: bool) -> T:
        """Make the call: here if it does not wait, else on a thread of the loop's executor."""
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if waits or (lock is not None and lock.locked()):
            async with self._locks.setdefault(loop, lock or asyncio.Lock()):
                return await loop.run_in_executor(None, call)
        with Owing() as owing:
            result = call()
        await owing.settle()
        return result
