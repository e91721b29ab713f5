"""Running threads and open files of a process, by name, so that two moments can be compared."""

import os
import threading
from collections.abc import Callable

from zenlake.runtime import kernel_loader

FILES = "/proc/self/fd"
TASKS = "/proc/self/task"


def alive(*, with_spark: bool = False) -> set[str]:
    """Return the threads, sockets and child processes of this process.

    `with_spark` leaves out the sockets, and the threads on which a JVM calls back: a Spark that
    runs in this process keeps one per streaming query until its own garbage collection.
    """
    if with_spark:
        return _threads(_serves_jvm) | _children()
    return _threads() | _sockets() | _children()


def _serves_jvm(thread: threading.Thread) -> bool:
    connection = getattr(vars(thread).get("_target"), "__self__", None)
    return type(connection).__module__ == "py4j.clientserver"


def _threads(ignored: Callable[[threading.Thread], bool] = lambda _: False) -> set[str]:
    return {
        f"thread {t.name} ({t.ident})"
        for t in threading.enumerate()
        if t.is_alive()
        and t.name != kernel_loader.THREAD_NAME  # once a process; it ends by itself
        and not ignored(t)
    }


def _sockets() -> set[str]:
    found = set()
    for descriptor in _entries(FILES):
        try:
            target = os.readlink(f"{FILES}/{descriptor}")  # noqa: PTH115 - runs twice a test
        except OSError:  # the descriptor of this very listing
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in _entries(TASKS):
        try:
            descriptor = os.open(f"{TASKS}/{task}/children", os.O_RDONLY)
        except OSError:  # a thread that ended meanwhile
            continue
        try:
            children = os.read(descriptor, 1 << 16).split()
        except OSError:
            continue
        finally:
            os.close(descriptor)
        found.update(f"process {child.decode()}" for child in children)
    return found


def _entries(folder: str) -> list[str]:
    """Return the names in `folder`, none where there is no /proc: only threads are seen there."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - runs twice a test
    except FileNotFoundError:
        return []
