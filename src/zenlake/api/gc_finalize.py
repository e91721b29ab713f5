"""Finalisation of dropped entities that is safe inside the garbage collector.

Knows that a destructor may run while its thread holds any lock. Does not know what is sent.
"""

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from zenlake.api.exchange_protocol import ExchangeLike
from zenlake.errors import ZError

_phases = OrderedDict.fromkeys(("start", "stop"))
"""Phases of the garbage collector, the present one last.

Updated without running Python code: a KeyboardInterrupt raised in a GC callback would be lost.
"""
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]  # A dict counts as True.


_of_the_parent: "WeakSet[ExchangeLike]" = WeakSet()
"Exchanges inherited through fork(); their threads and sockets belong to the parent."


def abandon(exchange: ExchangeLike) -> None:
    """Make no more last calls for `exchange`: it belongs to the parent process."""
    _of_the_parent.add(exchange)


def finalize_safely(exchange: ExchangeLike, call: Callable[[], None]) -> None:
    """Make the last `call` of a dropped entity.

    The garbage collector may run at any point, while this thread holds any lock. The last call of
    an object that it collects is therefore made on the I/O thread, soon. Makes no call while the
    interpreter shuts down: sessions are closed by then, and a lock that a stopped daemon thread
    holds is never released.
    """
    if sys.is_finalizing() or exchange in _of_the_parent:
        return
    if next(reversed(_phases)) == "start":
        with suppress(ZError):  # A closed session has undeclared everything.
            exchange.call_later(0.0, call)
    else:
        call()
