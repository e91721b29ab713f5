"""UDP datagrams joined from IP fragments.

Knows pieces by the number that the walk gave to what they have in common. Does not look at bytes.
"""

import numpy as np

from zenlake.capture.packets import Packets
from zenlake.capture.report import Report

MAX_UNFINISHED = 256  # Incomplete datagrams kept; the oldest is dropped.
MAX_BYTES = 0xFFFF  # Upper bound of a datagram's length in IP.
MAX_PIECES = MAX_BYTES // 8
_UDP_HEADER = 8


class Datagrams:
    """Joiner of IP fragments: windows of packets in, windows of whole datagrams out."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._unfinished: dict[int, dict[int, Packets]] = {}
        "Pieces by offset, for each datagram's number."

    def join(self, window: Packets) -> Packets:
        pieces = (window["offset"] > 0) | (window["more"] > 0)
        if not pieces.any():
            return window
        whole = [self._add(window[i : i + 1].copy()) for i in np.flatnonzero(pieces).tolist()]
        return np.concatenate(
            [window[~pieces], *(datagram for datagram in whole if datagram is not None)]
        )

    def finish(self) -> None:
        for pieces in self._unfinished.values():
            self._report.count("IP fragments of datagrams that are not whole", len(pieces))
        self._unfinished.clear()

    def _add(self, piece: Packets) -> Packets | None:
        number = int(piece["seq"][0])
        pieces = self._unfinished.pop(number, {})
        pieces.setdefault(int(piece["offset"][0]), piece)
        whole = _join_pieces(pieces)
        if whole is not None:
            return whole
        if len(pieces) > MAX_PIECES:
            self._report.count("IP fragments of datagrams that are not whole", len(pieces))
            return None
        self._unfinished[number] = pieces
        if len(self._unfinished) > MAX_UNFINISHED:
            oldest = self._unfinished.pop(next(iter(self._unfinished)))
            self._report.count("IP fragments of datagrams that are not whole", len(oldest))
        return None


def _join_pieces(pieces: dict[int, Packets]) -> Packets | None:
    """Return the rows in order if they are complete from the first to the last, else None."""
    if 0 not in pieces:
        return None
    rows: list[Packets] = []
    at = 0
    while at // 8 in pieces or not rows:
        row = pieces[at // 8]
        size = int(row["size"][0]) + (0 if rows else _UDP_HEADER)
        rows.append(row)
        if row["cut"][0]:
            return None
        at += size
        if at > MAX_BYTES:
            return None
        if not row["more"][0]:
            break
        if size % 8 or size == 0:
            return None
    if rows[-1]["more"][0]:
        return None
    whole = np.concatenate(rows)
    for field in ("stream", "side"):
        whole[field] = rows[0][field][0]
    return whole
