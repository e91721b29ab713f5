"""What a process has running or open, by name, so that two moments can be compared."""

import threading
from pathlib import Path

from zenlake.runtime import kernel_loader


def alive() -> set[str]:
    """Threads, sockets and child processes of this process."""
    return _threads() | _sockets() | _children()


def _threads() -> set[str]:
    return {
        f"thread {t.name} ({t.ident})"
        for t in threading.enumerate()
        if t.is_alive() and t.name != kernel_loader.THREAD_NAME  # once a process; it ends by itself
    }


def _sockets() -> set[str]:
    found = set()
    for descriptor in _entries(Path("/proc/self/fd")):
        try:
            target = str(descriptor.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in _entries(Path("/proc/self/task")):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # a thread that ended meanwhile
            continue
        found.update(f"process {child}" for child in children)
    return found


def _entries(folder: Path) -> list[Path]:
    """Nothing where there is no /proc: only threads are seen there."""
    return list(folder.iterdir()) if folder.exists() else []
