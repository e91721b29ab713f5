"""The event loops that everything here must work on."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

SECONDS = 30.0  # for anything to happen; a busy machine makes it slow, not wrong

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def runner(kind: str) -> Run:
    """Like asyncio.run, on a loop of this kind, with a limit of time."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(SECONDS):
                return await main

        with asyncio.Runner(loop_factory=LOOPS[kind]) as loop:
            return loop.run(limited())

    return run


on_every_loop = pytest.mark.parametrize("run", [runner(kind) for kind in LOOPS], ids=list(LOOPS))


async def until(condition: Callable[[], object]) -> None:
    """Until `condition` holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what it looks at tells nobody
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object]) -> None:
    """The same on a thread."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)
