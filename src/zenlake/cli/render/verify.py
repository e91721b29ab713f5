"""Encode every message again and compare it with the bytes that were read.

Knows the codec's writers. Does not know where the bytes came from.
"""

import sys

from zenlake.capture.message_fields import name_of
from zenlake.capture.offline_session import Entry
from zenlake.cli.render.report import DecodeReport
from zenlake.errors import EncodeError
from zenlake.quantities import counted
from zenlake.wire.batch import SCOUTING, TRANSPORT
from zenlake.wire.cursor import ByteWriter
from zenlake.wire.network import NETWORK

_WRITERS = {kind: table for table in (TRANSPORT, SCOUTING, NETWORK) for kind in table.by_type}


class Verify(DecodeReport):
    """Report of messages that encode differently: FRAME headers and joined messages too."""

    def __init__(self) -> None:
        self._same = 0
        self._different = 0

    def message(self, entry: Entry) -> None:
        read = entry.buffer.data[entry.start : entry.end]
        written = rewrite(entry)
        if written == read.hex():
            self._same += 1
            return
        self._different += 1
        where = entry.buffer.where(entry.start)
        sys.stdout.write(
            f"{name_of(entry.message)} at {where} differs\n"
            f"  read    {read.hex()}\n  written {written}\n"
        )

    def finish(self) -> bool:
        sys.stdout.write(f"{counted(self._same, 'message')} re-encoded byte for byte\n")
        if self._different:
            sys.stdout.write(f"{counted(self._different, 'message')} re-encoded differently\n")
        sys.stdout.flush()
        return not self._different


def rewrite(entry: Entry) -> str:
    """Return a message encoded again, in hexadecimal, or the reason it cannot be."""
    w = ByteWriter()
    try:
        _WRITERS[type(entry.message)].write(w, entry.message)
    except EncodeError as error:
        return f"nothing: {error}"
    return w.out.hex()
