"""The event loops that everything here must work on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

SECONDS = 90.0  # Limit of a whole run, above the deadline of a wait within it.

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
