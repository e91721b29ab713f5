"""Wait for something to become true, with a deadline, and report the last state on giving up.

Every test that polls does so through this module.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_SECONDS = 60.0
"""Upper bound on a wait: far more than anything needs, even on a busy machine."""
POLL_SECONDS = 0.005
"""Pause between two looks."""

T = TypeVar("T")


def until(
    look: Callable[[], T],
    done: Callable[[T], object] = bool,
    within: float = DEADLINE_SECONDS,
    *,
    pause: Callable[[], object] = lambda: time.sleep(POLL_SECONDS),
) -> T:
    """Call `look` until `done` accepts its result, and return that result.

    `pause` runs between two looks. Raises AssertionError with the last result after `within`
    seconds.
    """
    end = time.monotonic() + within
    while not done(seen := look()):
        assert time.monotonic() < end, _gave_up(within, look, seen)
        pause()
    return seen


def until_found(
    look: Callable[[], T | None],
    within: float = DEADLINE_SECONDS,
    *,
    pause: Callable[[], object] = lambda: time.sleep(POLL_SECONDS),
) -> T:
    """Call `look` until its result is not None, which may be a false value, and return that."""
    found = until(look, lambda seen: seen is not None, within, pause=pause)
    assert found is not None
    return found


async def until_async(
    look: Callable[[], T],
    done: Callable[[T], object] = bool,
    within: float = DEADLINE_SECONDS,
) -> T:
    """Call `look` until `done` accepts its result, and let the event loop run in between."""
    end = time.monotonic() + within
    while not done(seen := look()):
        assert time.monotonic() < end, _gave_up(within, look, seen)
        await asyncio.sleep(POLL_SECONDS)
    return seen


def _gave_up(within: float, look: Callable[[], object], seen: object) -> str:
    code = getattr(look, "__code__", None)
    where = f" at {code.co_filename}:{code.co_firstlineno}" if code else f" of {look!r}"
    return f"not so within {within:g} s; the last result of the look{where} was {seen!r}"
