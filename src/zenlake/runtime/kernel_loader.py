"""Loader of the compiled readers, in the background: the first load may compile for half a minute.

Knows whether they are loaded. Until then, and for small frames, the object codec does the work.
"""

import logging
import os
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from zenlake.wire.push_run import KeyGrouper
    from zenlake.wire.scan import Scanner

log = logging.getLogger("zenlake.runtime")

FRAME_ROWS = 8192  # Messages scanned at once: nearly always a whole frame.
THREAD_NAME = "zenlake kernels"


class Kernels(NamedTuple):
    """Readers with arrays of their own, for one thread."""

    scanner: "Scanner"
    grouper: "KeyGrouper"


_lock = threading.Lock()
_ready = False
_loading: threading.Thread | None = None


def make() -> Kernels | None:
    """Return readers for one thread; None: they are being loaded."""
    if not _ready:
        _load()
        return None
    return _make()


def load() -> None:
    """Load the readers; return when they are loaded."""
    _load()
    loading = _loading
    if loading is not None:
        loading.join()


def _make() -> Kernels:
    from zenlake.wire.push_run import KeyGrouper
    from zenlake.wire.scan import Scanner

    return Kernels(Scanner(FRAME_ROWS), KeyGrouper(secrets.randbits(64), FRAME_ROWS))


def _load() -> None:
    global _loading
    with _lock:
        if _loading is None and not _ready:
            _loading = threading.Thread(target=_run, name=THREAD_NAME, daemon=True)
            _loading.start()


def _run() -> None:
    """Compile the kernels, or load them from the cache, by reading one message."""
    global _ready
    try:
        import numpy as np

        from zenlake.shm import pointers
        from zenlake.wire.push_run import copy_messages, rewrite
        from zenlake.wire.wireexpr import WireExpr

        scanner, grouper = _make()
        data = memoryview(bytes.fromhex("5d0201037a7a7a"))
        for found in scanner.bare(data):
            run = grouper.run(data, 0, found.rows, 0)
            rewrite(run, [WireExpr(0, "a")], 1, b"\x00\x01")
            copy_messages(run, np.zeros(1, np.int64))
        pointers.load_kernels()
        _ready = True
    except Exception:
        log.exception("the compiled readers do not load; messages are read by slower code")


def _after_fork() -> None:
    """Forget the loading thread in the child of a fork, where it does not run."""
    global _lock, _loading
    _lock = threading.Lock()
    _loading = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
