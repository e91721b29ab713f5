"""Sequence numbers: one counter a lane and direction, wrapping at the agreed mask.

Knows which number comes next and which one is old. Does not know what the numbers are on.
"""

from collections.abc import Callable


class SequenceOut:
    """The numbers that we give."""

    __slots__ = ("mask", "next")

    def __init__(self, first: int, mask: int) -> None:
        self.next = first & mask
        self.mask = mask

    def take(self) -> int:
        sn = self.next
        self.next = sn + 1 & self.mask
        return sn

    def give_back(self) -> None:
        """The last number taken was not used."""
        self.next = self.next - 1 & self.mask

    def skip(self) -> None:
        self.next = self.next + 1 & self.mask


class SequenceIn:
    """The numbers that a peer gives: new ones pass, gaps are counted, old ones are refused.

    There is no retransmission in the protocol: a gap is a loss, on reliable lanes too.
    """

    __slots__ = ("_may_skip", "gaps", "half", "last", "mask", "missing", "on_gap", "stale")

    def __init__(
        self, first: int, mask: int, on_gap: Callable[[int, int], None] | None = None
    ) -> None:
        self.on_gap = on_gap
        "Told the first number that is missing, and how many are."
        self.mask = mask
        self.half = mask >> 1
        self.last = first - 1 & mask
        self.gaps = 0
        "How often numbers were missing."
        self.missing = 0
        "How many numbers were missing in all."
        self.stale = 0
        "How many came again or too late, and were dropped."
        self._may_skip = False

    def admit(self, sn: int) -> bool:
        """Whether `sn` is new. The caller has checked that it is within the mask."""
        step = sn - self.last & self.mask
        if step == 1:  # nearly always
            self.last = sn
            self._may_skip = False
            return True
        if step == 0 or step > self.half:
            self.stale += 1
            return False
        missing = step - 1 - self._may_skip
        if missing:
            self.gaps += 1
            self.missing += missing
            if self.on_gap is not None:
                self.on_gap(sn - missing & self.mask, missing)
        self.last = sn
        self._may_skip = False
        return True

    def fragmented(self) -> None:
        """A fragmented message has ended: senders skip one number after it, or do not."""
        self._may_skip = True
