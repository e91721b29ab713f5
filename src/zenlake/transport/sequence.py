"""Sequence numbers: one counter per lane and direction, which wraps at the agreed mask.

Knows which number is next and which one is stale. Does not know FRAMEs or FRAGMENTs.
Rust: `io/zenoh-transport/src/common/seq_num.rs`.
"""

from collections.abc import Callable

REORDER_WINDOW = 64  # Batches that may overtake a JOIN in the network; at most a quarter of all.


class SequenceOut:
    """Numbers of the batches that this node sends on a lane."""

    __slots__ = ("mask", "next")

    def __init__(self, first: int, mask: int) -> None:
        self.next = first & mask
        self.mask = mask

    def take(self) -> int:
        """Return the next number and count it as used."""
        sn = self.next
        self.next = sn + 1 & self.mask
        return sn

    def give_back(self) -> None:
        """Return the last number taken, which was not used."""
        self.next = self.next - 1 & self.mask

    def skip(self) -> None:
        """Leave out the next number."""
        self.next = self.next + 1 & self.mask


class SequenceIn:
    """Numbers received on a lane: new ones are admitted, gaps counted, stale ones refused.

    There is no retransmission in the protocol: a gap is a loss, on reliable lanes too.
    """

    __slots__ = (
        "_before_fragments",
        "_last_fragment",
        "_may_skip",
        "gaps",
        "half",
        "last",
        "mask",
        "missing",
        "on_gap",
        "stale",
    )

    def __init__(
        self, first: int, mask: int, on_gap: Callable[[int, int], None] | None = None
    ) -> None:
        self.on_gap = on_gap
        "Called with the first missing number and the count of missing ones."
        self.mask = mask
        self.half = mask >> 1
        self.last = first - 1 & mask
        self.gaps = 0
        "Number of gaps."
        self.missing = 0
        "Number of missing sequence numbers in all gaps."
        self.stale = 0
        "Number of duplicates and late arrivals, which were dropped."
        self._may_skip = False
        self._last_fragment: int | None = None
        self._before_fragments = self.last
        "Number of the last FRAME before the fragments that end with `_last_fragment`."

    def admit(self, sn: int) -> bool:
        """Return whether `sn` is new. The caller has checked that it is within the mask."""
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

    def admit_fragment(self, sn: int) -> bool:
        """Return what `admit` returns, for the number of a FRAGMENT."""
        before = self.last
        if not self.admit(sn):
            return False
        if before != self._last_fragment:
            self._before_fragments = before
        self._last_fragment = sn
        return True

    def has_restarted(self, sn: int) -> bool:
        """Whether a sender that announces `sn` as its next number has restarted: it is too far
        behind for an announcement that others have overtaken.

        Rust announces the number after its last FRAME, however many FRAGMENTs it sent since
        (multicast/link.rs, `latest_sn`).
        """
        last = self._before_fragments if self.last == self._last_fragment else self.last
        behind = last + 1 - sn & self.mask
        return min(REORDER_WINDOW, self.mask >> 2) < behind <= self.half + 1

    def end_fragments(self) -> None:
        """Note the end of a fragmented message, after which the sender may skip one number.

        Rust skips one; a gap of one there is not a loss.
        """
        self._may_skip = True
