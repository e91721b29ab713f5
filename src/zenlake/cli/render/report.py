"""The interface of the reports of a decoded stream: tree, json_lines, summary and verify.

Knows decoded entries. Does not know how they are printed.
"""

from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_buffer import BadBytes
from zenlake.capture.offline_session import Entry


class DecodeReport:
    """Report that is called in the order of the stream and writes to standard output."""

    def batch(self, batch: OfflineBatch) -> None:
        """Begin a batch."""

    def message(self, entry: Entry) -> None:
        """Report a message of the current batch."""

    def bad_bytes(self, bad: BadBytes) -> None:
        """Report bytes that cannot be decoded; nothing follows."""

    def finish(self) -> bool:
        """End the report; return False if it found something wrong."""
        return True
