"""Batches for an `EncodedSender`, and one that sends by rows of the scan alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zenlake.log.format import BATCH_ENTRY, RELIABLE, Entries
from zenlake.log.replay.encoded_sender import EncodedSender, SendOutcome
from zenlake.wire.scan import Scanner


def batches(
    counts: Sequence[int] | npt.NDArray[np.int64], links: Any = 0, reliable: Any = True
) -> Entries:
    """Entries of recorded batches."""
    entries = np.zeros(len(counts), BATCH_ENTRY)
    entries["count"], entries["link"] = counts, links
    entries["flags"] = np.where(reliable, RELIABLE, 0)
    return entries


def one_batch(data: memoryview) -> Entries:
    """All messages as one batch, of as many as the scan finds."""
    return batches([sum(len(part.rows) for part in Scanner().bare(data))])


class RowSender(EncodedSender):
    """Sender that leaves no message to the copying kernel."""

    def _put_plain(self, data: memoryview, keys: Any, batches: Entries) -> Any:
        return SendOutcome(), data, batches

    def put_one_batch(self, data: memoryview, keys: Any) -> SendOutcome:
        return self.put(data, keys, one_batch(data))
