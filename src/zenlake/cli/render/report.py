"""What a way of showing a decoded stream has to do; tree, jsonl, summary and verify do it."""

from zenlake.capture.offline_batches import OfflineBatch
from zenlake.capture.offline_buffer import BadBytes
from zenlake.capture.offline_session import Entry


class DecodeReport:
    """Called in the order of the stream. Writes to standard output."""

    def batch(self, batch: OfflineBatch) -> None:
        """A batch starts."""

    def message(self, entry: Entry) -> None:
        """A message of the batch that started last."""

    def bad_bytes(self, bad: BadBytes) -> None:
        """Nothing can be read from here on."""

    def finish(self) -> bool:
        """All has been read; False if the report found something wrong."""
        return True
