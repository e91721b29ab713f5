"""One outbound lane: the messages of one priority that wait to be sent.

Knows the parts of a lane's queue and its sequence numbers. How they are filled is in outbox.py.
"""

from collections import deque
from dataclasses import dataclass

from zenlake.transport.fast_path import FastPathLane
from zenlake.transport.sequence import SequenceOut
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.enums import WirePriority
from zenlake.wire.frame import FLAG_RELIABLE, header_parts


@dataclass(slots=True)
class FragmentedMessage:
    """A message that is being sent in fragments. Meanwhile its lane takes no other message."""

    data: memoryview
    reliable: bool
    droppable: bool
    pos: int = 0
    "Bytes that were sent."
    moved_at: float = 0.0
    "When a fragment was last sent."


class OutboundLane(FastPathLane):
    """Queue of one priority: sealed batches, then a fragmented message or an open batch, then the
    backlog.

    Both reliabilities share the batches; each has its own sequence numbers.
    """

    __slots__ = (
        "backlog",
        "bit",
        "body",
        "headers",
        "large",
        "name",
        "priority",
        "reliable",
        "sealed",
        "sequences",
        "start",
        "writer",
    )

    def __init__(
        self, index: int, priority: WirePriority | None, first_sns: tuple[int, int], mask: int
    ) -> None:
        super().__init__()
        self.bit = 1 << index
        "Bit of this lane in the outbox's lane masks; 0: the lane is held."
        self.priority = priority
        "None on a link without lanes, where no message may name one."
        header, name = header_parts(priority, False)
        self.headers = (header, header | FLAG_RELIABLE)
        "First byte of a FRAME: best effort, reliable."
        self.name = name
        "Bytes of a FRAME behind its sequence number."
        self.sequences = tuple(SequenceOut(first, mask) for first in first_sns)
        "Sequence numbers: best effort, reliable."
        self.writer: ByteWriter | None = None
        "Writes into the open batch; None: there is none."
        self.start = 0
        "Where the open FRAME starts in the open batch."
        self.body = 0
        "Where the messages of the open FRAME start."
        self.reliable: bool | None = None
        "Reliability of the open FRAME."
        self.sealed: deque[bytes | bytearray | memoryview] = deque()
        "Whole batches."
        self.large: FragmentedMessage | None = None
        self.backlog: deque[tuple[bytes, bool, bool]] = deque()
        "Messages beyond a full lane: bytes, whether reliable, whether it may be dropped."
