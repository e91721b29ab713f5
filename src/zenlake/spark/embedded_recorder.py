"""The recorder that a stream of Spark runs for itself, in the driver's process of the query.

Knows when it starts and ends: Spark ends that process by SIGTERM and may call nothing before.
"""

import logging
import os
import signal
import time
from types import FrameType
from typing import Any

from zenlake.log.write.recorder import Recorder
from zenlake.log.write.writer import LogLocked
from zenlake.spark.connection import config
from zenlake.spark.options import Options

LOCK_SECONDS = 20.0  # for the process of the run before to end
LOCK_POLL_SECONDS = 0.1

_log = logging.getLogger(__name__)


class EmbeddedRecorder:
    """Records from now on, until `close` or SIGTERM."""

    def __init__(self, options: Options) -> None:
        self._failure: object = None
        self._recorder = _started(options)
        self._before = signal.signal(signal.SIGTERM, self._terminated)

    def check(self) -> None:
        """Says once when nothing more becomes durable, and why; the recorder goes on trying."""
        failure = self._recorder.sink.failure
        if failure is not None and self._failure is None:
            _log.warning("the recorder cannot write: %s", failure)
        self._failure = failure

    def close(self) -> None:
        """What was received is durable then, and the log is sealed."""
        signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
        self._recorder.close()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.close()
        os.kill(os.getpid(), number)


def _started(options: Options) -> Recorder:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return Recorder(options["path"], options["key"], **_settings(options))
        except LogLocked:
            if time.monotonic() > end:
                raise
            time.sleep(LOCK_POLL_SECONDS)


def _settings(options: Options) -> dict[str, Any]:
    """Those that were given; for the others the recorder has its own."""
    retain, rotate = options["retain"], options["rotate"]
    given = {
        "codec": options["codec"],
        "retain_bytes": retain and retain.bytes,
        "retain_seconds": retain and retain.seconds,
        "rotate_bytes": rotate and rotate.bytes,
        "sync_seconds": options["sync"],
    }
    return {
        "config": config(options),
        "partition": options["recorderPartition"],
        **{name: value for name, value in given.items() if value is not None},
    }
