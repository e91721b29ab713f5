"""The recorder that a Spark stream runs for itself, in the driver's Python process of the query.

Knows when the recorder starts and ends: Spark ends that process by SIGTERM, often without any call
before.
"""

import logging
import os
import signal
import time
from types import FrameType
from typing import Any

from zenlake.log.files import LogLocked
from zenlake.log.write.recorder import Recorder
from zenlake.spark.connection import session_config
from zenlake.spark.options import Options

LOCK_SECONDS = 20.0  # Time for the process of the previous run to end and release the log.
LOCK_POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


class EmbeddedRecorder:
    """A recorder that runs from construction until `close` or SIGTERM."""

    def __init__(self, options: Options) -> None:
        self._failure: object = None
        self._recorder = _start_recorder(options)
        self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    def check(self) -> None:
        """Log a warning when the recorder stops making samples durable; it goes on trying."""
        failure = self._recorder.sink.failure
        if failure is not None and self._failure is None:
            _log.warning("the recorder cannot write: %s", failure)
        self._failure = failure

    def close(self) -> None:
        """Make every received sample durable and seal the log."""
        signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
        self._recorder.close()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.close()
        os.kill(os.getpid(), number)


def _start_recorder(options: Options) -> Recorder:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return Recorder(options["path"], options["key"], **_recorder_settings(options))
        except LogLocked:
            if time.monotonic() > end:
                raise
            time.sleep(LOCK_POLL_SECONDS)


def _recorder_settings(options: Options) -> dict[str, Any]:
    """Return the settings that the user gave; the recorder has its own defaults for the others."""
    retain = options["retain"]
    given = {
        "codec": options["codec"],
        "retain_bytes": retain and retain.bytes,
        "retain_seconds": retain and retain.seconds,
        "rotate_bytes": options["rotate"],
        "sync_seconds": options["sync"],
    }
    return {
        "config": session_config(options),
        "partition": options["recorderPartition"],
        **{name: value for name, value in given.items() if value is not None},
    }
