"""QoS: priority, congestion control and express of one network message, in one byte.

Knows the byte. Does not know lanes or queues.
"""

from collections.abc import Callable

from zenlake.wire.enums import PRIORITIES, WireCongestionControl, WirePriority

PRIORITY_BITS = 0x07
BLOCK = 0x08
EXPRESS = 0x10
BLOCK_FIRST = 0x20
_KNOWN_BITS = 0x3F

_CONGESTION_BITS = {
    WireCongestionControl.DROP: 0,
    WireCongestionControl.BLOCK: BLOCK,
    WireCongestionControl.BLOCK_FIRST: BLOCK_FIRST,
}


class QoS(int):
    """QoS byte, as an int so that it costs nothing to carry; equal values are one object.

      7 6 5 4 3 2 1 0
     +-+-+-+-+-+-+-+-+
     |x|x|F|E|D|prio |   D: block   E: express   F: block first (D wins)   x: ignored
     +-+-+-+-+-+-----+

    >>> QoS(WirePriority.REAL_TIME, WireCongestionControl.BLOCK, express=True)
    QoS(REAL_TIME, BLOCK, express)
    """

    __slots__ = ()

    def __new__(
        cls,
        priority: WirePriority = WirePriority.DATA,
        congestion_control: WireCongestionControl = WireCongestionControl.DROP,
        *,
        express: bool = False,
    ) -> "QoS":
        return _ALL[priority | _CONGESTION_BITS[congestion_control] | (EXPRESS if express else 0)]

    @staticmethod
    def from_byte(byte: int) -> "QoS":
        return _ALL[byte & _KNOWN_BITS]

    @property
    def priority(self) -> WirePriority:
        return PRIORITIES[self & PRIORITY_BITS]

    @property
    def congestion_control(self) -> WireCongestionControl:
        if self & BLOCK:
            return WireCongestionControl.BLOCK
        return (
            WireCongestionControl.BLOCK_FIRST if self & BLOCK_FIRST else WireCongestionControl.DROP
        )

    @property
    def express(self) -> bool:
        return bool(self & EXPRESS)

    def __repr__(self) -> str:
        words = [self.priority.name, self.congestion_control.name]
        if self.express:
            words.append("express")
        return f"QoS({', '.join(words)})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Callable[[int], "QoS"], tuple[int]]:
        return QoS.from_byte, (int(self),)


_ALL = tuple(int.__new__(QoS, byte) for byte in range(_KNOWN_BITS + 1))

DEFAULT = QoS()
DECLARE = QoS(WirePriority.CONTROL, WireCongestionControl.BLOCK)  # also INTEREST and OAM
REQUEST = QoS(WirePriority.DATA, WireCongestionControl.BLOCK)
