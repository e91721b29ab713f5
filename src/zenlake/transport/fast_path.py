"""The fast path: a plain put is appended to a lane without a lock.

Knows the rules by which callers and the thread that works on the lane share a list. Does not know
batches (outbox.py), when they are written (runtime/sending.py) or puts (api/pubsub/).

A put takes the session's lock, encodes its message into the open batch of its lane, and decides
who writes the batch. In a burst, most of that work is repeated without need. So while a batch is
open and about to be written anyway, callers append complete messages to a list beside it, and the
thread that next works on the lane moves the list into the batch. Appending to a list and reading
its length are atomic in CPython; nothing else is shared. These are the rules:

1. **Only a session that is about to write opens a lane.** It arms the flush timer and then calls
   `Outbox.enable_fast_path`, which opens the lane if the lane has an open batch whose FRAME is
   reliable, no fragmented message and no backlog. So a message that is appended while the lane is
   open leaves within FLUSH_SECONDS.
2. **A caller appends only while the lane is open and one batch has room for all that is appended**:
   (len(appended) + 1) * (len(payload) + overhead) < limit. Otherwise it sends under the lock.
3. **After appending, the caller looks at `open` again.** If the lane was closed in between, the
   thread that closed it may have taken the list before the append; the caller then has the session
   absorb the list (`FastPath.absorb`), under the lock.
4. **Every function that works on a lane under the lock takes the list first** (`take_appended`): it
   closes the lane, then counts, then takes as many messages as it counted, and puts them behind the
   content of the open batch. Closing before counting is what makes rule 3 sufficient.

From rule 4 follows the order: messages of one thread leave in the order of its calls, whichever
path each call took. From rules 1 and 3 follows that every appended message is sent.

    caller, without a lock                    thread that holds the session's lock
    ----------------------                    ------------------------------------
    lane.open?                                push, push_encoded, push_run, pull, ...:
      no  -> send_encoded, under the lock       take_appended()                       rule 4
      yes -> room in one batch?        rule 2     open = False
               no  -> send_encoded                n = len(appended)
               yes -> appended.append(m)          take n messages, write them to the batch
                      lane.open?       rule 3   ...
                        yes -> done             after a push that leaves the batch open:
                        no  -> absorb()           arm the flush timer
                                                  enable_fast_path() -> open = True   rule 1

Where each rule is carried out: rule 1 in `runtime/sending.py` (`_write_or_schedule`), rules 2 and 3
in `api/pubsub/outbound_route.py` (`make_fast_put`), rule 4 in `transport/outbox.py` (`_absorb`).
"""

from collections.abc import Callable
from typing import NamedTuple

from zenlake.caching import BoundedCache
from zenlake.wire.cursor import ByteWriter

MAX_HEADERS = 1024  # Payload lengths whose header one publisher caches.
MAX_LENGTH_BYTES = 3  # Bytes of an encoded payload length, if the payload fits a batch.


class FastPathLane:
    """The part of a lane that callers without a lock share with the thread that holds it."""

    __slots__ = ("appended", "open")

    def __init__(self) -> None:
        self.open = False
        "Whether callers may append."
        self.appended: list[bytes] = []
        "Reliable messages that follow the content of the open batch."

    def take_appended(self) -> list[bytes]:
        """Close the lane and remove what was appended to it (rule 4)."""
        self.open = False  # First: a caller that appends from now on sees it.
        count = len(self.appended)
        messages = self.appended[:count]
        del self.appended[:count]
        return messages


class HeaderCache(BoundedCache[int, bytes]):
    """A message up to its payload, by the payload's length."""

    __slots__ = ("_head",)

    def __init__(self, head: bytes) -> None:
        super().__init__(MAX_HEADERS)
        self._head = head

    def __missing__(self, size: int) -> bytes:
        w = ByteWriter(bytearray(self._head))
        w.zint("payload length", size)
        return self.keep(size, bytes(w.out))


class FastPath(NamedTuple):
    """All that a caller needs to append messages that are equal but for their payloads."""

    lane: FastPathLane
    headers: HeaderCache
    overhead: int
    "Upper bound on the bytes of a message beside its payload."
    limit: int
    "Bytes that one batch holds (rule 2)."
    absorb: Callable[[], None]
    "To be called if the lane is closed after an append (rule 3)."
