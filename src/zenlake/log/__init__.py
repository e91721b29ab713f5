"""The log: a recording of Zenoh, durable before it is visible (docs/log-format.md).

Knows blocks, segments, recovery, retention, recording and replay. Does not know Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zenlake.log.read.log import Log
    from zenlake.log.read.reader import Reader
    from zenlake.log.replay.replayer import Replayer
    from zenlake.log.write.recorder import Recorder
    from zenlake.log.write.writer import Writer

MAX_PARTITION = (1 << 31) - 1  # Highest partition number: Spark stores it as a 32-bit integer.

# Modules are loaded when first used: planning what to read needs neither Numba nor the network.
_MODULES = {
    "Log": "read.log",
    "Reader": "read.reader",
    "Recorder": "write.recorder",
    "Replayer": "replay.replayer",
    "Writer": "write.writer",
}
__all__ = ["Log", "Reader", "Recorder", "Replayer", "Writer"]

if not TYPE_CHECKING:  # Checkers know the names from above, and that there are no others.

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
