"""Shared memory of a node: its segment for handshakes, and the pool for large payloads.

Knows the configuration, and makes each part when it is first needed. Sessions are in session.py.
"""

import logging
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

from zenlake.shm import native
from zenlake.shm.arena import Arena, SharedBuffer
from zenlake.shm.foreign import ForeignMemory
from zenlake.shm.handshake import OwnSegment, ShmSteps
from zenlake.shm.headers import OwnHeaders
from zenlake.shm.segment import ShmError, before_exit, unavailable
from zenlake.transport.auth import Entropy

log = logging.getLogger("zenlake.shm")

POOL_BYTES = 16 << 20  # As in Rust (zenoh-config, transport/shared_memory).
THRESHOLD = 3072  # Bytes from which on a payload goes through the pool, as in Rust.
COPY_VARIABLE = "ZENLAKE_SHM_COPY"  # Environment variable: 1 if received payloads are copied.
KINDS = frozenset({"put", "query", "reply"})
LINGER_SECONDS = 5.0
"""Upper bound on how long a node that closes waits until its receivers have mapped the memory with
the last messages. A receiver that runs takes less than a millisecond."""
RELAY_SECONDS = 0.5
"""Upper bound on how long it waits for receivers behind nodes of eclipse-zenoh, which pass pointers
on: until no process refers to the memory, as nothing tells that all have mapped it."""
LINGER_STEP = 0.001  # Seconds between two looks.


@dataclass(frozen=True, kw_only=True)
class ShmConfig:
    """Settings of shared memory."""

    pool_bytes: int = POOL_BYTES
    "Size of the pool for payloads that callers give as bytes; 0: such payloads are not shared."
    threshold: int = THRESHOLD
    "Bytes from which on such a payload goes through the pool."
    kinds: frozenset[str] = KINDS
    "Messages whose payloads go through the pool."
    zero_copy: bool = True
    "Whether received payloads stay in shared memory while they are used; else they are copied."
    eager: bool = False
    "Whether the pool is made when the node starts; else with the first large payload."


class ProcessMemory:
    """Memory that all nodes of this process share."""

    def __init__(self) -> None:
        self.headers = OwnHeaders()
        self.foreign = ForeignMemory()
        self._arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
        "Memory of providers, and of the pools of nodes."
        self._lock = threading.Lock()
        self.ended: deque[tuple[Arena, float]] = deque()
        """Memory of providers that no caller has any more, until its receivers have mapped it, and
        when they ended."""

    def new_arena(self, size: int) -> Arena:
        arena = Arena(size, self.headers)
        with self._lock:
            self._arenas.add(arena)
        return arena

    def end(self, arena: Arena) -> None:
        """Remove the memory of a provider as soon as its receivers have mapped it."""
        self.ended.append((arena, time.monotonic()))

    def close_ended(self, least_age: float = RELAY_SECONDS) -> None:
        """Remove the memory of ended providers that all receivers have mapped, and have read unless
        the provider ended `least_age` seconds ago."""
        now = time.monotonic()
        for _ in range(len(self.ended)):
            arena, since = self.ended.popleft()
            if arena.is_delivered and (now - since >= least_age or arena.is_read):
                arena.close()
            else:
                self.ended.append((arena, since))

    def await_relays(self) -> None:
        """Wait until receivers to which other nodes pass pointers on have read them, or for
        RELAY_SECONDS."""
        with self._lock:
            arenas, end = list(self._arenas), time.monotonic() + RELAY_SECONDS
        if not all(arena.is_read for arena in arenas) and self.headers.may_be_passed_on():
            while not all(arena.is_read for arena in arenas) and time.monotonic() < end:
                time.sleep(LINGER_STEP)


_memory: ProcessMemory | None = None
_lock = threading.Lock()


def process_memory() -> ProcessMemory:
    """Return the shared memory of this process."""
    global _memory
    with _lock:
        if _memory is None:
            _memory = ProcessMemory()
            before_exit(_memory.foreign.holds.end)
        return _memory


def _after_fork() -> None:
    global _memory, _lock
    _memory, _lock = None, threading.Lock()  # The parent's is not ours to change.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class NodeShm:
    """Shared memory of one node."""

    def __init__(self, config: ShmConfig, entropy: Entropy) -> None:
        self.config = config
        self.declined: str | None = unavailable()
        "Why this node offers no shared memory; None: it does."
        self._entropy = entropy
        self._own: OwnSegment | None = None
        self._pool: Arena | None = None
        self._pool_failed = not config.pool_bytes
        self._lock = threading.Lock()
        if config.eager and self.declined is None:
            self._make_pool()

    def steps(self, *, reliable: bool) -> ShmSteps | None:
        """Return the steps of a handshake over one link; None: shared memory cannot be used."""
        with self._lock:
            self.declined = self.declined or native.failure()
            if self.declined is not None:
                return None
            if self._own is None:
                try:
                    self._own = OwnSegment(self._entropy)
                except ShmError as error:
                    self.declined = str(error)
                    log.warning("no shared memory: %s", self.declined)
                    return None
            return ShmSteps(self._own, reliable=reliable)

    def place(
        self, payload: bytes | memoryview, counter: int = 0, *, owned: bool = False
    ) -> SharedBuffer | None:
        """Return a buffer of the pool with a copy of `payload` and one reference, and count it in
        the word at the address `counter`; None: the pool has no room. `owned`: the reference is
        this process's."""
        pool = self._pool or self._make_pool()
        if pool is None:
            return None
        try:
            buffer = pool.take_recent(len(payload)) or pool.take_or_collect(len(payload))
        except ShmError:  # There are no headers left.
            return None
        if buffer is not None:
            buffer.fill(payload, counter, owned=owned)
        return buffer

    def view(self, payload: bytes) -> memoryview | None:
        """Return a copy of `payload` in the pool that several sessions may point to; None: there
        is no room."""
        from zenlake.shm.views import OwnLease, view_of

        buffer = self.place(payload, owned=True)
        if buffer is None:
            return None
        lease = OwnLease(buffer, buffer.generation)
        return view_of(buffer.arena.segment, buffer.offset, len(payload), lease, writable=False)

    @property
    def pool(self) -> Arena | None:
        """The pool, if it was made."""
        return self._pool

    def close(self) -> None:
        """Remove the segments, when the peers have mapped what was sent to them, or after
        LINGER_SECONDS. Payloads that are still read stay readable."""
        with self._lock:
            self.declined = "the node is closed"
            self._pool_failed = True
            own, end = self._own, time.monotonic() + LINGER_SECONDS
        while own is not None and not own.is_delivered and time.monotonic() < end:
            time.sleep(LINGER_STEP)
        memory = process_memory()
        memory.await_relays()
        memory.close_ended(least_age=0)
        memory.foreign.drop_unheld()  # Held until after their session ended, perhaps.
        with self._lock:
            if self._own is not None:
                self._own.segment.close()
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def _make_pool(self) -> Arena | None:
        with self._lock:
            if self._pool is None and not self._pool_failed:
                try:
                    self._pool = process_memory().new_arena(self.config.pool_bytes)
                except (ShmError, native.NotCompiled) as error:
                    self._pool_failed = True
                    # Its text alone: its frames hold the query that the payload answers.
                    log.warning("large payloads go over the network: %s", str(error))
            return self._pool
